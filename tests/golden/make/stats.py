"""The statistics of a study, from SciPy and NumPy: quantiles, bootstrap intervals, the exact sign test, Wilson's interval, Student's t, least squares.

The bootstrap is checked twice. `exact` draws with a Philox4x32-10 written here from the paper (Salmon et al., SC'11), keyed as
src/study/analyse/stats.h says, so that the interval must agree to rounding. `levels` comes from scipy.stats.bootstrap with its own generator
and 400,000 draws: 2,000 draws estimate the 2.5 % quantile at a level whose standard error is sqrt(0.025*0.975/2000) = 0.0035, so that
four of them around 0.025 (0.011 to 0.039) bracket any right answer.

Needs numpy and scipy only: python3 stats.py
"""

import json
import math
import os

import numpy
import scipy
from scipy import linalg, stats

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data", "stats.json")
MASK = 0xFFFFFFFF


def philox(seed, step, tensor, index):
    counter = [index & MASK, index >> 32, tensor, step]
    key = [seed & MASK, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & MASK, (a >> 32) ^ counter[3] ^ key[1], a & MASK]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


def resample(seed, stream, draw, n):
    out = []
    for i in range(0, n, 2):
        w = philox(seed, draw, stream, i // 2)
        out += [((w[1] << 32 | w[0]) * n) >> 64, ((w[3] << 32 | w[2]) * n) >> 64]
    return out[:n]


def shuffle(seed, stream, n):
    out = list(range(n))
    for i in range(n, 1, -1):
        w = philox(seed, 0, stream, i)
        k = ((w[1] << 32 | w[0]) * i) >> 64
        out[i - 1], out[k] = out[k], out[i - 1]
    return out


def exact_bootstrap(x, statistic, draws, seed, stream):
    values = [statistic(x[resample(seed, stream, d, len(x))]) for d in range(draws)]
    return [float(v) for v in numpy.quantile(values, [0.025, 0.975])]


def sign(wins, losses):
    n, k = wins + losses, min(wins, losses)
    log_p = min(0.0, float(stats.binom.logcdf(k, n, 0.5)) + math.log(2)) if 2 * k < n else 0.0
    return {"wins": wins, "losses": losses, "p": stats.binomtest(wins, n, 0.5).pvalue if n else 1.0, "log10_p": log_p / math.log(10)}


def least_squares(x, y):
    n, k = x.shape
    beta, _, rank, _ = linalg.lstsq(x, y)
    assert rank == k
    residual = y - x @ beta
    s2 = residual @ residual / (n - k)
    error = numpy.sqrt(s2 * numpy.diag(linalg.inv(x.T @ x)))
    r2 = 1 - residual @ residual / ((y - y.mean()) @ (y - y.mean()))
    return {"x": x.tolist(), "y": y.tolist(), "beta": beta.tolist(), "error": error.tolist(), "r2": float(r2), "sigma": float(math.sqrt(s2))}


def line(random):  # scipy.stats.linregress, for one column and an intercept
    x, y = random.normal(size=30), random.normal(size=30)
    y += 0.7 * x
    fit = stats.linregress(x, y)
    return {"x": numpy.column_stack([numpy.ones(30), x]).tolist(), "y": y.tolist(), "beta": [float(fit.intercept), float(fit.slope)],
            "error": [float(fit.intercept_stderr), float(fit.stderr)], "r2": float(fit.rvalue**2), "sigma": None}


def study(random):  # as a study has it: layers, width, ln batch, ln sequence
    rows = [(1, l, d, math.log(b), math.log(t)) for l in (4, 8, 12) for d in (128, 256, 512) for b in (1, 2, 4) for t in (64, 128)]
    x = numpy.array(rows, dtype=float)
    y = x @ numpy.array([-1.8, -0.004, 7e-4, 0.33, 0.34]) + random.normal(scale=0.17, size=len(x))
    return least_squares(x, y)


def main():
    random = numpy.random.default_rng(20)
    x = random.lognormal(0.4, 0.5, size=37)
    p = [0, 0.01, 0.025, 0.25, 0.333, 0.5, 0.75, 0.9, 0.975, 1]
    levels = {}
    for name, statistic in (("median", numpy.median), ("mean", numpy.mean)):
        draws = stats.bootstrap((x,), statistic, n_resamples=400000, method="percentile", random_state=1, batch=20000).bootstrap_distribution
        levels[name] = {"low": numpy.quantile(draws, [0.011, 0.039]).tolist(), "high": numpy.quantile(draws, [0.961, 0.989]).tolist()}
    result = {
        "origin": {"script": "tests/golden/make/stats.py", "numpy": numpy.__version__, "scipy": scipy.__version__},
        "x": x.tolist(),
        "quantiles": [[q, float(numpy.quantile(x, q))] for q in p],
        "deviation": float(numpy.std(x, ddof=1)),
        "resample": {"seed": 7 << 33 | 5, "stream": 3, "draw": 11, "indices": resample(7 << 33 | 5, 3, 11, 23)},
        "shuffle": {"seed": 9, "stream": 4, "order": shuffle(9, 4, 19)},
        "exact": {"seed": 1, "stream": 1, "draws": 2000, "median": exact_bootstrap(x, numpy.median, 2000, 1, 1),
                  "mean": exact_bootstrap(x, numpy.mean, 2000, 1, 1)},
        "levels": levels,
        "sign": [sign(w, l) for w, l in ((0, 0), (1, 0), (3, 3), (4, 3), (10, 2), (2, 10), (14, 50), (60, 4), (590, 130), (130, 590), (999, 1001), (3000, 2800))],
        "wilson": [[k, n, *map(float, stats.binomtest(k, n).proportion_ci(0.95, method="wilson"))] for k, n in ((0, 5), (5, 5), (3, 7), (590, 720))],
        "student": [[q, df, float(stats.t.ppf(q, df))] for q in (0.5, 0.75, 0.9, 0.95, 0.975, 0.995) for df in (1, 2, 3, 4, 9, 30, 1000)],
        "mean_interval": list(map(float, stats.t.interval(0.95, len(x) - 1, loc=x.mean(), scale=stats.sem(x)))),
        "ols": [study(random), line(random)],
    }
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


main()
