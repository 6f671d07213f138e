# Differential evolution, as hops-util-py has it, with its older names.
from hops import experiment

experiment.defaults.update(executors=2, memory="192MiB")


def objective(x, activation):
    return -(x - 3) ** 2 - (activation == "tanh")


logdir, best_param, return_dict = experiment.differential_evolution(objective_function=objective, boundary_dict={"x": [0.0, 10.0], "activation": ["relu", "tanh"]},
                                                                    direction="max", generations=3, population=4, quiet=True, seed=1, project="deck")
print("DE", sorted(best_param), round(return_dict["metric"], 6) == round(-(best_param["x"] - 3) ** 2 - (best_param["activation"] == "tanh"), 6))
