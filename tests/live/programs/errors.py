"""What real programs print when they fail: texts to print, by a name that a test can ask for.

Each entry is (text on stderr, exit code). Shortened from what the named programs print, in their own words.
"""

from __future__ import annotations

ERRORS: dict[str, tuple[str, int]] = {
    # PyTorch 2: an exception nobody catches.
    "cuda_oom": (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 212, in <module>\n'
        "    loss.backward()\n"
        '  File "torch/autograd/graph.py", line 829, in _engine_run_backward\n'
        "    return Variable._execution_engine.run_backward(\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.15 "
        "GiB of which 822.06 MiB is free. Including non-PyTorch memory, this process has 78.33 GiB memory in use.",
        1,
    ),
    # PyTorch 2, ProcessGroupNCCL's watchdog; the process then aborts.
    "nccl_timeout": (
        "[rank0]:[E304 11:02:17.410932771 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1187, OpType=ALLREDUCE, NumelIn=26214400, NumelOut=26214400, Timeout(ms)=600000) ran "
        "for 600031 milliseconds before timing out.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception",
        134,
    ),
    "python_exception": (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 88, in <module>\n'
        "    main(config)\n"
        '  File "train.py", line 41, in main\n'
        '    warmup = config["warmup_step"]\n'
        "KeyError: 'warmup_step'",
        1,
    ),
    "import_error": (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 5, in <module>\n'
        "    import flash_attn\n"
        "ModuleNotFoundError: No module named 'flash_attn'",
        1,
    ),
    "missing_file": (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 30, in <module>\n'
        '    with open("/data/corpus/train.jsonl") as stream:\n'
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/train.jsonl'",
        1,
    ),
    # torch.load of a truncated file.
    "checkpoint_corrupt": (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 60, in <module>\n'
        "    state = torch.load(path, weights_only=True)\n"
        '  File "torch/serialization.py", line 1432, in load\n'
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        1,
    ),
    "disk_full": (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 133, in save\n'
        "    torch.save(state, path)\n"
        "OSError: [Errno 28] No space left on device",
        1,
    ),
    "tensor_shape_error": (
        "Traceback (most recent call last):\n"
        '  File "torch/nn/modules/linear.py", line 134, in forward\n'
        "    return F.linear(input, self.weight, self.bias)\n"
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x768 and 1024x10)",
        1,
    ),
    # Hugging Face: a hub that does not answer.
    "hub_download_failed": (
        "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): "
        'Max retries exceeded with url: /gpt2/resolve/main/config.json (Caused by NewConnectionError))"))',
        1,
    ),
}
