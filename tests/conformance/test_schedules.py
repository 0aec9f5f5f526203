"""Message schedules: once, repeated and cron, on both servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conformance.client import Client, Message, error_of
from conformance.consumer_client import eventually
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]
SECOND = 1_000_000_000
PAST = "@at 2020-01-01T00:00:00Z"
FUTURE = "@at 2100-01-01T00:00:00Z"


class Planner:
    """Schedules in one stream: stored below `plan`, fired below `out`."""

    def __init__(self, client: Client, stream: str) -> None:
        self.client = client
        self.stream = stream

    def plan(
        self, pattern: str, subject: str = "plan.a", payload: bytes = b"x", **fields: str
    ) -> dict[str, Any]:
        headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": f"{self.stream}.out"}
        headers |= {key.replace("_", "-"): value for key, value in fields.items()}
        return self.client.store(
            f"{self.stream}.{subject}", payload, {k: v for k, v in headers.items() if v != "-"}
        )

    def ended_before_its_time(self, end: Callable[[], object]) -> str:
        """Create a schedule and end it before it is due; return when it would have fired."""
        for lead_s in (1, 4, 12):  # longer on a machine that needs longer
            due = datetime.now(UTC) + timedelta(seconds=lead_s)
            self.plan(f"@at {due.isoformat()}")
            end()
            if datetime.now(UTC) < due:
                return due.isoformat()
            self.client.api(f"STREAM.PURGE.{self.stream}")
        raise AssertionError("it was always due before it was ended")

    def get(self, subject: str) -> Message | None:
        message = self.client.request(f"$JS.API.DIRECT.GET.{self.stream}.{self.stream}.{subject}")
        return None if message.status else message

    def fired(self, subject: str = "out") -> Message:
        found: list[Message] = []

        def look() -> bool:
            message = self.get(subject)
            if message is not None:
                found.append(message)
            return bool(found)

        eventually(look)
        return found[0]

    def count(self, subject: str) -> int:
        state = self.client.api(
            f"STREAM.INFO.{self.stream}", {"subjects_filter": f"{self.stream}.{subject}"}
        )["state"]
        return int(state.get("subjects", {}).get(f"{self.stream}.{subject}", 0))


@pytest.fixture
def planner(client: Client, make_stream: Make, name: str) -> Planner:
    info = make_stream(
        allow_msg_schedules=True, allow_msg_ttl=True, allow_direct=True, allow_atomic=True, allow_batched=True
    )
    assert info["config"]["allow_rollup_hdrs"]
    return Planner(client, name)


class TestOnce:
    def test_it_fires_and_is_gone(self, planner: Planner, name: str) -> None:
        assert planner.plan(PAST, payload=b"hello", Own="kept", Nats_Msg_Id="i") == {"stream": name, "seq": 1}
        message = planner.fired()
        assert message.payload == b"hello"
        shown = {
            key: value
            for key, value in message.headers.items()
            if not key.startswith("Nats-S") or "Schedule" in key
        }
        assert shown == {
            "Own": "kept",
            "Nats-Scheduler": f"{name}.plan.a",
            "Nats-Schedule-Next": "purge",
            "Nats-Time-Stamp": message.headers["Nats-Time-Stamp"],
        }
        eventually(lambda: planner.count("plan.a") == 0)
        assert planner.count("out") == 1

    def test_not_before_its_time(self, planner: Planner) -> None:
        due = datetime.now(UTC) + timedelta(seconds=1)
        planner.plan(f"@at {due.isoformat().replace('+00:00', 'Z')}")
        early = planner.get("out")
        assert early is None or datetime.now(UTC) >= due
        stored = planner.fired().headers["Nats-Time-Stamp"]
        assert datetime.fromisoformat(stored[:26].rstrip("Z") + "+00:00") >= due - timedelta(milliseconds=1)

    def test_how_it_is_kept(self, planner: Planner) -> None:
        planner.plan(FUTURE)
        message = planner.get("plan.a")
        assert message is not None
        assert message.headers["Nats-Schedule"] == FUTURE
        assert message.headers["Nats-Rollup"] == "sub"

    def test_a_new_one_replaces_it(self, planner: Planner, name: str) -> None:
        planner.plan(FUTURE, payload=b"old")
        planner.plan(PAST, payload=b"new")
        assert planner.fired().payload == b"new"
        eventually(lambda: planner.count("plan.a") == 0)

    def test_a_plain_message_ends_it(self, planner: Planner, name: str) -> None:
        soon = planner.ended_before_its_time(lambda: planner.client.store(f"{name}.plan.a", "plain"))
        planner.plan(f"@at {soon}", "plan.b", payload=b"other")
        assert planner.fired().payload == b"other"
        time.sleep(0.6)  # nats-server checks four times a second
        assert planner.count("out") == 1

    def test_a_deleted_one_does_not_fire(self, planner: Planner, name: str) -> None:
        purge = {"filter": f"{name}.plan.a"}
        soon = planner.ended_before_its_time(lambda: planner.client.api(f"STREAM.PURGE.{name}", purge))
        planner.plan(f"@at {soon}", "plan.b", payload=b"other")
        assert planner.fired().payload == b"other"
        time.sleep(0.6)
        assert planner.count("out") == 1

    def test_a_client_ends_it(self, planner: Planner, name: str) -> None:
        planner.plan(FUTURE)
        headers = {"Nats-Scheduler": f"{name}.plan.a", "Nats-Schedule-Next": "purge"}
        assert planner.client.store(f"{name}.note", "ended", headers)["seq"] == 2
        assert planner.count("plan.a") == 0
        assert planner.count("note") == 1

    def test_an_invalid_schedule_ttl_is_refused(self, planner: Planner) -> None:
        planner.plan(PAST, Nats_Schedule_TTL="5m")
        assert planner.fired().headers["Nats-TTL"] == "5m"

    def test_an_invalid_rollup_is_refused(self, planner: Planner, name: str) -> None:
        for _ in range(3):
            planner.client.store(f"{name}.out", "before")
        planner.plan(PAST, payload=b"after", Nats_Schedule_Rollup="sub")
        eventually(lambda: planner.count("out") == 1)
        message = planner.fired()
        assert (message.payload, message.headers["Nats-Rollup"]) == (b"after", "sub")

    def test_an_invalid_source_is_refused(self, planner: Planner, name: str) -> None:
        planner.client.store(f"{name}.data", "old", {"Own": "1"})
        planner.client.store(f"{name}.data", "new", {"Own": "2", "Nats-Msg-Id": "i", "Nats-TTL": "1h"})
        planner.plan(PAST, payload=b"own", Nats_Schedule_Source=f"{name}.data")
        message = planner.fired()
        assert (message.payload, message.headers["Own"]) == (b"new", "2")
        assert "Nats-Msg-Id" not in message.headers
        assert "Nats-TTL" not in message.headers

    def test_source_without_a_message(self, planner: Planner, name: str) -> None:
        planner.plan(PAST, payload=b"own", Nats_Schedule_Source=f"{name}.data")
        assert planner.fired().payload == b"own"

    def test_an_invalid_schedule_in_a_batch_is_refused(self, planner: Planner, name: str) -> None:
        first = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}
        assert planner.client.request(f"{name}.other", b"1", first).payload == b""
        fields = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1"}
        assert planner.plan(PAST, **fields)["count"] == 2
        assert planner.fired().payload == b"x"

    def test_a_schedule_fires_in_a_memory_stream(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_msg_schedules=True, allow_direct=True, storage="memory")
        planner = Planner(client, name)
        planner.plan(PAST)
        assert planner.fired().payload == b"x"

    def test_a_schedule_fires_after_a_restart(
        self, fresh_server: Server, connect: Callable[..., Client]
    ) -> None:
        client = connect(fresh_server)
        config = {"name": "P", "subjects": ["P.>"], "allow_msg_schedules": True, "allow_direct": True}
        client.api("STREAM.CREATE.P", config)
        due = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
        Planner(client, "P").plan(f"@at {due}")
        Planner(client, "P").plan(FUTURE, "plan.b")
        client.close()
        fresh_server.stop()
        fresh_server.start()
        planner = Planner(connect(fresh_server), "P")
        assert planner.fired().payload == b"x"
        assert planner.count("plan.b") == 1


class TestRepeated:
    @pytest.mark.parametrize("pattern", ["@every 1s", "* * * * * *", "*/1 * * ? jan-dec SUN-sat"])
    def test_it_goes_on(self, planner: Planner, name: str, pattern: str) -> None:
        planner.plan(pattern)
        eventually(lambda: planner.count("out") >= 2)
        message = planner.fired()
        following = datetime.fromisoformat(message.headers["Nats-Schedule-Next"].replace("Z", "+00:00"))
        assert following.microsecond == 0
        assert following > datetime.now(UTC) - timedelta(seconds=30)
        assert planner.count("plan.a") == 1

    def test_a_cron_schedule_follows_its_time_zone(self, planner: Planner) -> None:
        planner.plan("* * * * * *", Nats_Schedule_Time_Zone="Asia/Kolkata")
        assert planner.fired().headers["Nats-Schedule-Next"].endswith("+05:30")


class TestRefusals:
    @pytest.mark.parametrize(
        "pattern",
        [
            "@at x",
            "@at",
            "@at 2020-01-01",
            "@every 999ms",
            "@every x",
            "@every -5s",
            "@never",
            "* * * * *",
            "60 * * * * *",
            "* 60 * * * *",
            "* * 24 * * *",
            "* * * 0 * *",
            "* * * 32 * *",
            "* * * * 13 *",
            "* * * * * 7",
            "5-3 * * * * *",
            "*/0 * * * * *",
            "1-2-3 * * * * *",
            "1/2/3 * * * * *",
            "x * * * * *",
            "* * * 31 2 ?",
        ],
    )
    def test_an_invalid_pattern_is_refused(self, planner: Planner, pattern: str) -> None:
        assert error_of(planner.plan(pattern)) == (10189, "message schedules pattern is invalid")

    @pytest.mark.ours_only("A cron field that matches nothing is rejected at once")
    def test_pattern_without_values(self, planner: Planner) -> None:
        assert error_of(planner.plan(", * * * * *"))[0] == 10189

    @pytest.mark.parametrize(
        "pattern",
        [
            "@hourly",
            "@daily",
            "@midnight",
            "@weekly",
            "@monthly",
            "@yearly",
            "@annually",
            "@every 1h30m",
            "0 0 0 29 2 *",
        ],
    )
    def test_patterns_that_are_fine(self, planner: Planner, pattern: str) -> None:
        assert planner.plan(pattern)["seq"] == 1

    @pytest.mark.parametrize("pattern", [PAST, "@every 1s"])
    def test_a_time_zone_without_cron_is_refused(self, planner: Planner, pattern: str) -> None:
        assert error_of(planner.plan(pattern, Nats_Schedule_Time_Zone="Europe/Vienna"))[0] == 10189

    @pytest.mark.parametrize("zone", ["Middle/Earth", ""])
    def test_an_unknown_time_zone_is_refused(self, planner: Planner, zone: str) -> None:
        assert error_of(planner.plan("@daily", Nats_Schedule_Time_Zone=zone))[0] == 10223

    @pytest.mark.parametrize(
        "target", ["-", "", "elsewhere", "{name}.*", "{name}.>", "{name}.plan.a", "{name}..x"]
    )
    def test_an_invalid_target_is_refused(self, planner: Planner, name: str, target: str) -> None:
        answer = planner.plan(PAST, Nats_Schedule_Target=target.format(name=name))
        assert error_of(answer) == (10190, "message schedules target is invalid")

    @pytest.mark.parametrize("source", ["elsewhere", "{name}.*", "{name}.plan.a", "{name}.out"])
    def test_an_invalid_source_is_refused(self, planner: Planner, name: str, source: str) -> None:
        answer = planner.plan(PAST, Nats_Schedule_Source=source.format(name=name))
        assert error_of(answer) == (10203, "message schedules source is invalid")

    @pytest.mark.parametrize("ttl", ["x", "1ms"])
    def test_an_invalid_schedule_ttl_is_refused(self, planner: Planner, ttl: str) -> None:
        assert error_of(planner.plan(PAST, Nats_Schedule_TTL=ttl))[0] == 10191

    def test_a_schedule_ttl_needs_allow_msg_ttl(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_msg_schedules=True)
        assert error_of(Planner(client, name).plan(PAST, Nats_Schedule_TTL="5s"))[0] == 10166

    @pytest.mark.parametrize("field", [{"Nats_Schedule_Rollup": "all"}, {"Nats_Rollup": "all"}])
    def test_an_invalid_rollup_is_refused(self, planner: Planner, field: dict[str, str]) -> None:
        assert error_of(planner.plan(PAST, **field))[0] == 10192

    def test_rollup_of_its_own(self, planner: Planner) -> None:
        assert planner.plan(FUTURE, Nats_Rollup="sub")["seq"] == 1

    @pytest.mark.parametrize(
        "headers",
        [
            {"Nats-Scheduler": "{name}.plan.a"},
            {"Nats-Schedule-Next": "purge"},
            {"Nats-Scheduler": "{name}.plan.a", "Nats-Schedule-Next": "2030-01-01T00:00:00Z"},
            {"Nats-Scheduler": "{name}.x", "Nats-Schedule-Next": "purge"},
            {"Nats-Scheduler": "{name}.*", "Nats-Schedule-Next": "purge"},
            {"Nats-Scheduler": "{name}.plain", "Nats-Schedule-Next": "purge"},
        ],
    )
    def test_a_forged_scheduler_header_is_refused(
        self, planner: Planner, name: str, headers: dict[str, str]
    ) -> None:
        planner.client.store(f"{name}.plain", "no schedule")
        filled = {key: value.format(name=name) for key, value in headers.items()}
        assert error_of(planner.client.store(f"{name}.x", "", filled)) == (
            10212,
            "message schedules invalid scheduler",
        )

    def test_a_stream_without_schedules_refuses_them(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        planner = Planner(client, name)
        assert error_of(planner.plan(PAST)) == (10188, "message schedules is disabled")
        assert error_of(planner.plan("x"))[0] == 10188
        headers = {"Nats-Scheduler": f"{name}.plan", "Nats-Schedule-Next": "purge"}
        assert error_of(client.store(f"{name}.x", "", headers))[0] == 10188

    def test_an_invalid_schedule_in_a_batch_is_refused(self, planner: Planner) -> None:
        fields = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "1", "Nats_Batch_Commit": "1"}
        assert error_of(planner.plan("x", **fields))[0] == 10189

    def test_schedules_refuse_contradicting_stream_options(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        base = {"name": name, "allow_msg_schedules": True}
        answer = client.api(f"STREAM.CREATE.{name}", {**base, "discard": "new"})
        assert error_of(answer) == (10052, "message scheduling cannot use discard new")
        assert (
            error_of(client.api(f"STREAM.CREATE.{name}", {**base, "mirror": {"name": "STAYS"}}))[0] == 10186
        )
        assert (
            error_of(client.api(f"STREAM.CREATE.{name}", {**base, "sources": [{"name": "STAYS"}]}))[0]
            == 10187
        )
        config = make_stream(allow_msg_schedules=True)["config"]
        answer = client.api(f"STREAM.UPDATE.{name}", {**config, "allow_msg_schedules": False})
        assert error_of(answer) == (10052, "message schedules can not be disabled")
