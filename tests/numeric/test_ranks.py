"""Exchange between processes, and their use of a sharded model outside training."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import together
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import LabError
from rlhf_lab.models.build import load_policy
from rlhf_lab.models.pair_rows import sequence_logps
from rlhf_lab.training.run import Run


def test_one_process_is_its_own_world() -> None:
    assert (ranks.world(), ranks.rank(), ranks.is_main()) == (1, 0, True)
    assert list(ranks.deal_round_robin("abc")) == [("a", True), ("b", True), ("c", True)]
    assert ranks.gather(ranks.shard([1, 2, 3])) == [1, 2, 3]
    assert ranks.on_main(lambda: 5) == 5


class Unportable(Exception):
    """An error that holds what cannot be sent."""

    def __init__(self, text: str, *, lock: threading.Lock):
        super().__init__(text)
        self.lock = lock


def exchange() -> None:
    own = ranks.rank()
    assert ranks.world() == 2 and ranks.is_main() == (own == 0)
    dealt = list(ranks.deal_round_robin(["a", "b", "c"]))
    assert dealt == ([("a", True), ("c", True)] if own == 0 else [("b", True), ("c", False)])
    assert ranks.gather([item for item, mine in dealt if mine]) == ["a", "b", "c"]
    assert ranks.gather(ranks.shard(list(range(7)))) == list(range(7))
    assert ranks.exchange(own) == [0, 1]
    assert ranks.any_of(own == 1) and not ranks.any_of(False)
    assert ranks.on_main(lambda: own) == 0

    def fail() -> None:
        raise Unportable("out of reach", lock=threading.Lock())

    with pytest.raises(LabError, match="Unportable: out of reach"):
        ranks.on_main(fail)
    with ranks.single_process():
        assert ranks.world() == 1 and ranks.shard([1, 2]) == [1, 2]
        assert ranks.is_main() == (own == 0)


def test_two_processes_exchange() -> None:
    together(exchange)


ROWS = [([1, 2, 3, 4, 5, 6], [7, 8]), ([1, 2, 3, 4, 5, 6], [9]), ([3, 4], [5, 6, 7]), ([8], [9, 10]), ([5, 6], [7])]


def after_training(policy: str, directory: Path) -> None:
    """Batches of 20 tokens: in the first two rows share a prompt, in the others none."""
    overrides = (f"needs.policy={policy}", "reward=length", "needs.reward=null", "algorithm.critic=zero")
    dtype = ("runtime.dtype=bfloat16", "sharding=fsdp_full", "sharding.checkpointing=true")
    config = planned("ppo", *SMALL_WORLD, *ONE_LAYER, *overrides, *dtype, f"outputs={directory}").config
    run = Run(directory, config, {"policy": policy})
    algorithm = registry.build("algorithm", config.algorithm, run)
    engine = registry.build("sharding", config.sharding, algorithm, run)
    engine.close()
    found = sequence_logps(algorithm.model, ROWS, "cpu", max_tokens=20)
    alone = load_policy(policy, config.model)
    with ranks.single_process(), torch.no_grad():
        expected = sequence_logps(alone, ROWS, "cpu", max_tokens=20)
    assert torch.allclose(found, expected, atol=0.2) and not torch.equal(found, expected)  # bfloat16
    from rlhf_lab.models.encoding import TokenBatch

    with torch.no_grad(), run.autocast():
        values = algorithm.critic.values(TokenBatch.from_rows(ROWS))
    assert values.dtype == torch.float32


@pytest.mark.slow
def test_a_divided_model_is_used_after_training(policy: Path, tmp_path: Path) -> None:
    """Passes that share a prompt and passes that do not would need another number of exchanges each."""
    together(after_training, str(policy), tmp_path)


def test_collectives_have_the_time_limit_of_the_settings_and_waiting_has_its_own(monkeypatch):
    limits: dict[str, timedelta] = {}
    broadcasts: list[Any] = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(ranks.MEETING, "file:///nowhere")
    monkeypatch.setattr(ranks, "die_with_parent", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, timeout, **__: limits.update(collective=timeout))
    monkeypatch.setattr(dist, "new_group", lambda *, backend, timeout: limits.update(waiting=timeout) or "waiting")
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda values, src, group: broadcasts.append(group))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: broadcasts.append(group))
    with ranks.group("cpu", 5):
        monkeypatch.setattr(ranks, "world", lambda: 2)
        assert ranks.on_main(lambda: 7) == 7
        ranks.wait()
    assert limits == {"collective": timedelta(minutes=5), "waiting": timedelta(days=1)}
    assert broadcasts == ["waiting", "waiting"]
