#!/usr/bin/env python3
"""A real DDP training in which rank 2 loads its batches slowly for a while; all ranks wait for it in each step.

It ends once a file ``finish`` is there, and rank 2 is as quick as the others once a file ``mended`` is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import slurmtrain_training as st
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

QUICK_S, SLOW_S = 0.1, 0.5


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print(json.dumps({"starts": os.environ["SLURMTRAIN_LAUNCH"], "node": os.environ["SLURMD_NODENAME"]}), flush=True)
    step, leave = 0, torch.zeros(1)
    while not leave.item():
        began = time.monotonic()
        time.sleep(SLOW_S if rank == 2 and not Path("mended").exists() else QUICK_S)
        points = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(points), (points[:, 0] > 0).long())
        busy_s = time.monotonic() - began
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        st.heartbeat(step=step, busy_s=busy_s)
        leave = torch.tensor([float(Path("finish").exists())])
        dist.all_reduce(leave)
    st.done()
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
