# An ablation study on Titanic, as in the decks, with the features that it has there.
from maggy import experiment
from maggy.ablation import AblationStudy


def dataset():
    return {"pclass": [1, 3, 2, 3], "sex": [0, 1, 0, 1], "survived": [1, 0, 1, 0]}


class Dense:
    layers = 3


def base_model():
    return Dense()


def deep_model():
    model = Dense()
    model.layers = 9
    return model


def training_fn(dataset_function, model_function, reporter):
    data, model = dataset_function(), model_function()
    score = len(data) + model.layers / 10
    reporter.broadcast(score)
    return score


ablation_study = AblationStudy("titanic_train_dataset", training_dataset_version=1, label_name="survived", dataset_generator=dataset)
ablation_study.features.include("pclass", "sex")
ablation_study.features.list_all()
ablation_study.model.set_base_model_generator(base_model)
ablation_study.model.add_custom_model_generator(deep_model, "deep")
ablation_study.model.layers.print_all()
result = experiment.lagom(map_fun=training_fn, experiment_type="ablation", ablation_study=ablation_study, ablator="loco", name="Titanic-LOCO", executors=2, memory="192MiB",
                          repeats=2, project="deck", quiet=True)
print("ABLATION", [(r["component"], r["trials"], round(r["mean"], 3)) for r in result["ablation"]])
