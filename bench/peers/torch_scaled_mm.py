"""bench/peers/torch_scaled_mm.py ROWSxNxK…: the rates of PyTorch's products, as CSV rows like those of bench_fp8_products: BF16, FP8 with a scale for each tensor
(torch._scaled_mm; forward with fast accumulation, gradients without, both operands turned already), and with blocks of 128 where this PyTorch has them.
linear: y [R, N] = x [R, K]·wᵀ; linear_dx: dx [R, K] = dy [R, N]·w; linear_dw: dw [N, K] = dyᵀ·x, FP32. Median of 20 after 3, each with its own events."""

import statistics
import sys

import torch

RUNS, WARM = 20, 3
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def median(run):
    times = []
    for i in range(WARM + RUNS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(100_000)  # while this is waited for, Python launches what is timed
        start.record()
        run()
        end.record()
        end.synchronize()
        if i >= WARM:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def numbers(rows, cols, dtype):
    return torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16).mul_(4).to(dtype)


def operands(op, size, forward, back):
    """a [M, L], row-major; b [N, L], whose transpose is what is multiplied."""
    r, n, k = size
    if op == "linear":
        return numbers(r, k, forward), numbers(n, k, forward)
    if op == "linear_dx":
        return numbers(r, n, back), numbers(k, n, forward)
    return numbers(n, r, back), numbers(k, r, forward)


def bf16(op, size):
    a, b = operands(op, size, torch.bfloat16, torch.bfloat16)
    return lambda: a @ b.t()  # dw too is BF16 here: torch.mm has no other result


def fp8(op, size):
    a, b = operands(op, size, E4M3, E5M2)
    one = torch.tensor(2.0**-4, device="cuda")
    result = torch.float32 if op == "linear_dw" else torch.bfloat16
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=result, use_fast_accum=op == "linear")


def fp8_block(op, size):
    a, b = operands(op, size, E4M3, E4M3)
    m, inner = a.shape
    n = b.shape[0]
    scale_a = torch.full((inner // 128, m), 2.0**-4, device="cuda").t()
    if op == "linear_dw":
        scale_b = torch.full((inner // 128, n), 2.0**-4, device="cuda")  # 1 x 128 blocks of both
    else:
        scale_b = torch.full((n // 128, inner // 128), 2.0**-4, device="cuda").t()
    return lambda: torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=False)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    device = torch.cuda.get_device_name()
    print("kernel,precision,rows,n,k,ms,tflops,device")
    for word in sys.argv[1:]:
        size = [int(x) for x in word.split("x")]
        for op in ("linear", "linear_dx", "linear_dw"):
            for name, make in (("bf16", bf16), ("fp8", fp8), ("fp8-block", fp8_block)):
                try:
                    ms = median(make(op, size))
                except (RuntimeError, ValueError) as error:
                    print(f"{op} {name} {word}: {str(error).splitlines()[0]}", file=sys.stderr)
                    continue
                work = 2e-9 * size[0] * size[1] * size[2]
                print(f'{op} torch {torch.__version__},{name},{size[0]},{size[1]},{size[2]},{ms:.4f},{work / ms:.1f},"{device}"', flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
