"""LOCO over the features of Titanic, with repeats: the decks' study."""
import os

from maggy import experiment
from maggy.ablation import AblationStudy
from maggy.config import AblationConfig

TITANIC = os.environ.get("TITANIC", "/Projects/examples/titanic.csv")


def dataset(path=TITANIC):
    import csv
    import io
    from hops import hdfs
    rows = list(csv.DictReader(io.StringIO(hdfs.load(path).decode())))
    number = {"female": 0.0, "male": 1.0, "1st": 1.0, "2nd": 2.0, "3rd": 3.0, "survived": 1.0, "died": 0.0, "": 30.0, "NA": 30.0}
    return {name: [number[r[name]] if r[name] in number else float(r[name]) for r in rows] for name in ("pclass", "sex", "age", "sibsp", "parch", "survived")}


def train(dataset_function, seed):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score
    data = dataset_function()
    y = data.pop("survived")
    x = list(zip(*data.values()))
    return float(cross_val_score(RandomForestClassifier(50, max_depth=5, random_state=seed % (1 << 31)), x, y, cv=4).mean())


study = AblationStudy("titanic", 1, "survived", dataset_generator=dataset)
study.features.include("pclass", "sex", "age", "sibsp", "parch")
result = experiment.lagom(train, AblationConfig(study, repeats=5, executors=2, arguments={"path": TITANIC}))
effects = {r["component"]: r["effect"] for r in result["ablation"] if r["effect"] is not None}
assert min(effects, key=effects.get) == "sex", result["ablation"]
print("OK ablation_titanic", {k: round(v, 3) for k, v in effects.items()})
