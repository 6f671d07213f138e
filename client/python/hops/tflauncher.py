"""`tflauncher.launch(spark, fn, args_dict)`, the first name of experiment.launch."""
from hops import experiment


def launch(spark_session=None, map_fun=None, args_dict=None, **options):
    """Run map_fun once, or once for each element of the equally long lists of args_dict (util.grid_params makes them of a grid). spark_session is not used: executors come
    from the cluster's resource manager. Returns the directory of the experiment."""
    if map_fun is None and callable(spark_session):
        raise TypeError("the first argument is the Spark session, or None; the function is the second")
    return experiment.launch(map_fun, args_dict, **options)[0]
