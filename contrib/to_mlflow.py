#!/usr/bin/env python3
"""Sends a run of `mezzo train` to MLflow: contrib/to_mlflow.py runs/mezzo --live

Needs `pip install mlflow`. Where it goes is MLFLOW_TRACKING_URI; without one, MLflow's own default on this machine.
"""

import argparse
import math
import os
import sys

import follow

BATCH = 500  # metrics a call: MLflow takes 1,000 at most


def main():
    args = follow.arguments(argparse.ArgumentParser(description=__doc__.splitlines()[0])).parse_args()
    import mlflow
    from mlflow.entities import Metric

    client = mlflow.MlflowClient()
    mlflow.set_experiment(args.project)
    with mlflow.start_run(run_name=args.name or os.path.basename(os.path.abspath(args.run))) as run:
        config = follow.configuration(args.run)
        if config is not None:
            mlflow.set_tag("config.yaml", config[:5000])
        waiting = []
        for step, numbers, texts in follow.records(args.run, live=args.live, idle=args.idle):
            # Its stores keep numbers; one that is not finite is told by its name, as no store takes all of them.
            waiting += [Metric(key, value, 0, step) for key, value in numbers.items() if math.isfinite(value)]
            waiting += [Metric(key + "_not_finite", 1, 0, step) for key, value in numbers.items() if not math.isfinite(value)]
            for key, text in texts.items():
                mlflow.set_tag(key, text[:5000])
            if len(waiting) >= BATCH or args.live:
                client.log_batch(run.info.run_id, metrics=waiting[:1000])
                waiting = waiting[1000:]
        if waiting:
            client.log_batch(run.info.run_id, metrics=waiting)
        if args.verify:
            mlflow.log_metrics(follow.benchmark(args.verify))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        sys.exit(f"to_mlflow: {error}")
