"""Row 29: a master that was replaced while clients still reach it takes no more writes than its replica confirms."""

from __future__ import annotations

import pytest

import restante
from restante import ReadOnly
from tests.faults.rows import count_from_journal, drain, missing, verdict, wait_until
from tests.harness.proxy import FaultProxy
from tests.harness.servers import HOST, RedisServer, call

#: Redis refuses writes when no replica was heard of for so many seconds.
LAG = 1
CONFIG = {"repl-diskless-sync-delay": "0", "min-replicas-to-write": "1", "min-replicas-max-lag": str(LAG)}


@pytest.mark.timed
def test_a_master_that_was_replaced_takes_no_more_writes_and_loses_nothing_confirmed(name: str) -> None:
    with RedisServer(config=CONFIG) as old, RedisServer() as new, FaultProxy(old.port, raw=True) as link:
        call(old.client(), "CONFIG", "SET", "repl-ping-replica-period", 1)
        call(new.client(), "REPLICAOF", HOST, link.port)
        wait_until(lambda: old.info("replication").get("min_slaves_good_slaves") == "1", 10, "the replica")
        with restante.connect(old.url, patience=0) as stranded, restante.connect(new.url) as post:
            queue = stranded.queue(name)
            confirmed = [queue.send(number, durability="replica:1") for number in range(20)]
            link.blackhole()
            doubtful: list[str] = []

            def refused() -> bool:
                """Whether the old master refuses by this error; what it still takes at level `memory` may be lost."""
                try:
                    doubtful.append(queue.send("soon refused", durability="memory"))
                except ReadOnly:
                    return True
                return False

            took = wait_until(refused, 10, "the old master to refuse writes")
            with pytest.raises(ReadOnly):
                queue.send("nobody has it", durability="replica:1")
            call(new.client(), "REPLICAOF", "NO", "ONE")
            after = post.queue(name).send("after")
            found = drain(post, name)
            assert doubtful
            assert not set(doubtful) & set(found)
            verdict(29, n=21, lost=missing([*confirmed, after], found), max_recovery_s=took, within_s=LAG + 2.0)
            count_from_journal(post, name)
