#!/usr/bin/env python3
"""bench/which_precision.py [--check]: draws the flow chart of docs/guides/which-precision.md and fills its table, from the
summaries that `mezzo analyze` made of the sweeps in bench/results. --check writes nothing; it exits with 1 when the page is not what the rows say."""
import html
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/guides/which-precision.md"
CHART = ROOT / "docs/guides/figures/which-precision.svg"
# folder of bench/results, what ran there
SWEEPS = [("sweep-gpt2-h200", "H200", "GPT-2"), ("sweep-h100", "H100", "GLM-4-MoE"), ("sweep-cpu-amx", "CPU with AMX", "GLM-4-MoE"),
          ("sweep-cpu-avx2", "CPU with AVX2 only", "GPT-2")]


def summary(folder):
    return json.loads((ROOT / "bench/results" / folder / "summary.json").read_text(encoding="utf-8"))


def won(folder):
    data = summary(folder)
    return f"faster on {data['sign_test']['wins']} of {data['pairs']} shapes,", f"{data['speedup']['min']:.2f} to {data['speedup']['max']:.1f} ×"


def table():
    lines = ["| machine | model | shapes | BF16 faster on | BF16 speedup over FP32: min, median, max | tokens per step |", "|---|---|---|---|---|---|"]
    for folder, machine, model in SWEEPS:
        data = summary(folder)
        tokens = [point["tokens_per_step"] for width in data["widths"] for point in width["points"]]
        speed = data["speedup"]
        lines.append(f"| {machine} | [{model}](../../bench/results/{folder}/report.md) | {data['pairs']} | {data['sign_test']['wins']} | "
                     f"{speed['min']:.2f}, {speed['median']:.2f}, {speed['max']:.2f} × | {min(tokens):,.0f} to {max(tokens):,.0f} |")
    return "\n".join(lines)


# name: left, top, width, kind, lines. Kinds: ask, take, note.
def boxes():
    gpt, moe, amx, avx2 = (won(folder) for folder, _, _ in SWEEPS)
    return {
        "where": (370, 10, 200, "ask", ["Where do you train?"]),
        "gpu": (120, 90, 220, "ask", ["NVIDIA GPU:", "compute capability?"]),
        "cpu": (595, 90, 230, "ask", ["CPU: what native BF16 arithmetic", "does mezzo doctor report?"]),
        "t4": (10, 210, 210, "ask", ["At least 600 tokens per step", "(width < 512: 1,000)?"]),
        "bf16": (235, 210, 235, "take", ["BF16", "H200, GPT-2: " + gpt[0], gpt[1], "H100, GLM-4-MoE: " + moe[0], moe[1]]),
        "amx": (485, 210, 215, "take", ["BF16", "AMX: " + amx[0], amx[1]]),
        "fp32": (715, 210, 235, "take", ["FP32", "AVX2: BF16 " + avx2[0], avx2[1], "(BF16 if memory is short)"]),
        "fp16": (10, 340, 95, "take", ["FP16", "with a scaler"]),
        "t4_32": (125, 340, 95, "take", ["FP32"]),
        "differ": (310, 370, 330, "ask", ["mezzo verify: is the difference from the", "FP32 loss acceptable?"]),
        "keep": (260, 470, 160, "take", ["Keep it"]),
        "raise": (480, 470, 280, "take", ["Keep sensitive modules in FP32", "(--autocast), or use TF32 or FP32"]),
    }


ARROWS = [("where", "gpu", ""), ("where", "cpu", ""), ("gpu", "t4", "7.5"), ("gpu", "bf16", "8.0 or later"), ("cpu", "amx", "AMX, AVX-512 BF16"),
          ("cpu", "fp32", "none"), ("t4", "fp16", "yes"), ("t4", "t4_32", "no"), ("bf16", "differ", ""), ("amx", "differ", ""),
          ("differ", "keep", "yes"), ("differ", "raise", "no")]
FILL = {"ask": "#eef3fa", "take": "#e9f6ee"}
EDGE = {"ask": "#3b6ea5", "take": "#2e7d4f"}


def chart():
    placed = boxes()
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 540" font-family="sans-serif" font-size="13" role="img">',
           '<title>Which precision to train in, by machine</title>', '<rect width="960" height="540" fill="white"/>',
           '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"><path d="M0,0 L9,4 L0,8 z" fill="#555"/></marker></defs>']

    def height(name):
        return 14 + 18 * len(placed[name][4])

    for start, end, label in ARROWS:
        x1, y1 = placed[start][0] + placed[start][2] / 2, placed[start][1] + height(start)
        x2, y2 = placed[end][0] + placed[end][2] / 2, placed[end][1]
        out.append(f'<line x1="{x1:.0f}" y1="{y1}" x2="{x2:.0f}" y2="{y2}" stroke="#555" stroke-width="1.3" marker-end="url(#tip)"/>')
        if label:
            side, anchor = (-7, "end") if x2 < x1 else (7, "start")
            out.append(f'<text x="{(x1 + x2) / 2 + side:.0f}" y="{(y1 + y2) / 2 + 4:.0f}" text-anchor="{anchor}" font-size="12" fill="#333">{label}</text>')
    for name, (left, top, width, kind, lines) in placed.items():
        out.append(f'<rect x="{left}" y="{top}" width="{width}" height="{height(name)}" rx="{4 if kind == "ask" else 12}" '
                   f'fill="{FILL[kind]}" stroke="{EDGE[kind]}" stroke-width="1.4"/>')
        for row, line in enumerate(lines):
            first = row == 0 and kind == "take"
            out.append(f'<text x="{left + width / 2:.0f}" y="{top + 20 + 18 * row}" text-anchor="middle"{" font-weight=" + chr(34) + "bold" + chr(34) if first else ""}'
                       f' font-size="{13 if first or kind == "ask" else 11}">{html.escape(line)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    page = PAGE.read_text(encoding="utf-8")
    wanted = {PAGE: re.sub(r"(<!-- rows -->\n).*?(<!-- end -->)", lambda match: match[1] + table() + "\n" + match[2], page, flags=re.S), CHART: chart()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what bench/results says: bench/which_precision.py renews it")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


sys.exit(main())
