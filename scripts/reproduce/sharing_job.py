"""One training of ``sharing --live``: bursts of kernels and gaps of its host, by ctypes alone.

    python sharing_job.py FOLDER DRIVER ITERATIONS KERNELS KERNEL_US GAP_MS

Its device is a file in the folder, named by its node and the GPU that gsched has given to it.
Without a library for sharing in its process it uses the driver itself. It prints the duration of
its iterations alone, seconds.
"""

import ctypes
import os
import sys
import time

BYTES = 16 << 20


def main() -> None:
    """Run all iterations."""
    folder, driver = sys.argv[1:3]
    iterations, kernels, kernel_us = (int(word) for word in sys.argv[3:6])
    gap_s = float(sys.argv[6]) / 1000
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    os.environ["GSCHED_FAKE_STATE"] = os.path.join(folder, f"{os.environ['HOSTNAME']}-{gpu}")
    is_shared = "GSCHED_SHARE_SOCKET" in os.environ
    api = ctypes.CDLL("libcuda.so.1" if is_shared else driver)
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for result in (
        api.cuInit(0),
        api.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        api.cuCtxSetCurrent(context),
        api.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES)),
    ):
        if result:
            sys.exit(f"CUDA error {result}")
    begun_s = time.monotonic()
    for _ in range(iterations):
        for _ in range(kernels):
            api.cuLaunchKernel(None, kernel_us, 1, 1, 1, 1, 1, 0, None, None, None)
        api.cuCtxSynchronize()
        time.sleep(gap_s)
    print(time.monotonic() - begun_s)


if __name__ == "__main__":
    main()
