#!/usr/bin/env python3
"""Sends a run of `mezzo train` to Weights & Biases: contrib/to_wandb.py runs/mezzo --live

Needs `pip install wandb`. WANDB_MODE=offline writes to the disk only; `wandb sync` sends it later.
"""

import argparse
import os
import sys

import follow


def main():
    args = follow.arguments(argparse.ArgumentParser(description=__doc__.splitlines()[0])).parse_args()
    import wandb

    name = args.name or os.path.basename(os.path.abspath(args.run))
    with wandb.init(project=args.project, name=name, config={"config.yaml": follow.configuration(args.run)}) as run:
        for step, numbers, texts in follow.records(args.run, live=args.live, idle=args.idle):
            run.log(numbers, step=step)
            for key, text in texts.items():
                run.summary[key] = text  # amp/precision, run/device, the last sample
        if args.verify:
            values = follow.benchmark(args.verify)
            run.log(values)
            run.summary.update(values)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        sys.exit(f"to_wandb: {error}")
