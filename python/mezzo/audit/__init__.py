"""Follows the first steps of a PyTorch program and writes down which precision its operations really had.

    python -m mezzo.audit train.py ARGUMENTS
    mezzo doctor --run -- python train.py ARGUMENTS

The program is not changed. `mezzo doctor --trace FILE…` judges what was written. Nothing of torch is imported before
the program imports it, and everything that was put into torch is taken out after the followed steps.
"""
