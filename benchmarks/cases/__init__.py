"""Programs as people write them, and two loops that do hardly anything but log."""

from . import evaluation, evolution, lbfgs, loop, mlp, ppo, sampler, transformer
from ._case import Case as Case, ignore as ignore

CASES = {
    case.name: case
    for case in (
        ppo.CASE,
        transformer.CASE,
        mlp.CASE,
        sampler.CASE,
        evolution.CASE,
        lbfgs.CASE,
        lbfgs.VMAPPED,
        evaluation.CASE,
        loop.ARRAYS,
        loop.EMPTY,
    )
}
