"""Facts that a version of Headrace reports about a data directory, before and after it is used.

`generate.py` runs this under the old version and stores the outcome; `test_upgrade.py` runs it under the current one
and compares. So it uses only public interfaces: the NATS protocol, `headrace.Server`, `headrace serve`, `headrace
fsck`, `headrace.read`, `headrace.claims`. Values that differ between runs are left out, and times after the directory
was closed are shown as "later".
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

import headrace
from headrace.errors import StoreError
from support.processes import serving

Facts = dict[str, Any]
API = "$JS.API."
PAGE = 100
_XATTR = "SCHILY.xattr."
#: Longer than anything that a directory waits for after a start.
TIMEOUT_S = 60.0
#: The phases, and the phase that each follows.
PHASES = (("opened", "after"), ("after", "restarted"), ("restarted", "accepted"))
_ANSWERS = (b"", b"+ACK", b"-NAK", b"+TERM")
#: Error names of the version that wrote the directories, for errors that were renamed since.
_OLD_ERRORS = {"CorruptData": "Corrupt", "StorePoisoned": "Poisoned", "StoreFull": "Full"}
_CONSUMER = ("config", "created", "num_ack_pending", "num_redelivered", "num_pending", "paused")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a directory."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="tar")
        for member in files:
            for key, value in member.pax_headers.items():  # claims keep metadata in extended attributes
                if key.startswith(_XATTR):
                    name = key.removeprefix(_XATTR)
                    os.setxattr(folder / member.name, name, value.encode("utf-8", "surrogateescape"))


def error_name(error: StoreError) -> str:
    """Return the class name of an error as in the stored outcomes."""
    name = type(error).__name__
    return _OLD_ERRORS.get(name, name)


def fold(found: Facts) -> Facts:
    """Return an outcome as it is stored: a stream that did not change since the previous phase is None."""
    folded = dict(found)
    for before, phase in PHASES:
        if phase in found:
            pairs = zip(found[before], found[phase], strict=True)
            folded[phase] = [
                {name: None if facts == old.get(name) else facts for name, facts in new.items()}
                for old, new in pairs
            ]
    return folded


def unfold(stored: Facts) -> Facts:
    """Undo `fold`."""
    whole = dict(stored)
    for before, phase in PHASES:
        if phase in stored:
            pairs = zip(whole[before], stored[phase], strict=True)
            whole[phase] = [
                {name: old[name] if facts is None else facts for name, facts in new.items()}
                for old, new in pairs
            ]
    return whole


class Account:
    """A connection as one of the directory's users."""

    def __init__(self, connection: Client, plan: Facts) -> None:
        self.connection = connection
        self._closed = plan["closed"]
        self._ageing = plan["ageing"]

    async def api(self, subject: str, body: object = None) -> Any:
        payload = b"" if body is None else json.dumps(body).encode()
        answer = await self.connection.request(API + subject, payload, timeout=TIMEOUT_S)
        return json.loads(answer.data)

    async def streams(self) -> Facts:
        """Return everything that the API returns about all streams of the account."""
        names = (await self.api("STREAM.NAMES"))["streams"] or []
        return {name: await self._stream(name) for name in sorted(names) if name not in self._ageing}

    async def _stream(self, name: str) -> Facts:
        info = await self.api(f"STREAM.INFO.{name}", {"subjects_filter": ">", "deleted_details": True})
        state = info["state"]
        for key in ("first_ts", "last_ts"):
            state[key] = self._time(state[key])
        facts = {"config": _settings(info["config"]), "created": info["created"], "state": state}
        for key in ("mirror", "sources"):
            if key in info:
                entries = info[key] if key == "sources" else [info[key]]
                facts[key] = [{"name": each["name"], "lag": each["lag"]} for each in entries]
        facts["messages"] = await self._messages(name, state)
        facts["consumers"] = await self._consumers(name)
        return facts

    async def _messages(self, name: str, state: Facts) -> Facts:
        found: Facts = {}
        seqs = range(state["first_seq"], state["last_seq"] + 1) if state["messages"] else range(0)
        for at in range(0, len(seqs), PAGE):
            some = seqs[at : at + PAGE]
            answers = await asyncio.gather(
                *(self.api(f"STREAM.MSG.GET.{name}", {"seq": seq}) for seq in some)
            )
            for seq, answer in zip(some, answers, strict=True):
                if "error" not in answer:
                    found[str(seq)] = self._message(answer["message"])
                elif answer["error"]["err_code"] != 10037:  # not found
                    found[str(seq)] = answer["error"]["err_code"]
        return found

    def _message(self, message: Facts) -> str:
        """Return one line, so that the stored facts are small and differences are easy to read."""
        body = hashlib.sha256(message.get("data", "").encode()).hexdigest()[:16]
        when = self._time(message["time"])
        head = message.get("hdrs", "")
        if when == "later" and head:  # a marker or copy made at the start: its headers may contain times
            head = hashlib.sha256(head.encode()).hexdigest()[:16] if "Time" not in head else "..."
        elif head:
            head = hashlib.sha256(head.encode()).hexdigest()[:16]
        return f"{message['subject']} {when} {head} {body}"

    async def _consumers(self, name: str) -> Facts:
        listed = (await self.api(f"CONSUMER.LIST.{name}"))["consumers"] or []
        found = {}
        for info in listed:
            facts = {key: info[key] for key in _CONSUMER if key in info}
            facts["config"] = _settings(facts["config"])
            for key in ("delivered", "ack_floor"):
                facts[key] = [info[key]["consumer_seq"], info[key]["stream_seq"]]
            if "priority_groups" in info:
                facts["priority_groups"] = [
                    [each["group"], bool(each.get("pinned_client_id"))] for each in info["priority_groups"]
                ]
            found[info["name"]] = facts
        return found

    def _time(self, text: str) -> str:
        return "later" if text > self._closed else text

    async def publish(self, subject: str, data: str, headers: dict[str, str]) -> object:
        """Publish; return the ack, or the code of the error."""
        answer = await self.connection.request(
            subject, data.encode(), timeout=TIMEOUT_S, headers=headers or None
        )
        said = json.loads(answer.data)
        return said["error"]["err_code"] if "error" in said else said

    async def pull(self, stream: str, consumer: str, *, answer: bool, **request: object) -> list[str]:
        """Pull all available messages, and reply by sequence: nothing, ack, nak or term."""
        inbox = self.connection.new_inbox()
        taken = await self.connection.subscribe(inbox)
        body = json.dumps({"batch": 200, "no_wait": True, **request}).encode()
        await self.connection.publish(f"{API}CONSUMER.MSG.NEXT.{stream}.{consumer}", body, inbox)
        messages: list[Msg] = []
        end = []
        while not end:
            message = await taken.next_msg(TIMEOUT_S)
            status = (message.headers or {}).get("Status")
            if status and not message.reply:
                end.append(status)
            else:
                messages.append(message)
        await taken.unsubscribe()
        said = [_ANSWERS[each.metadata.sequence.stream % 4] if answer else b"" for each in messages]
        told = [self._taken(*pair) for pair in zip(messages, said, strict=True)]
        return [*await asyncio.gather(*told), *end]

    async def push(self, subject: str, count: int | None) -> tuple[list[str], int]:
        """Subscribe to a push consumer and ack what arrives: `count` messages, or all until none arrives."""
        heard = await self.connection.subscribe(subject)
        found: list[str] = []
        with contextlib.suppress(nats.errors.TimeoutError):
            while count is None or len(found) < count:
                message = await heard.next_msg(1.5 if count is None else TIMEOUT_S)
                if message.reply.startswith("$JS.ACK."):
                    found.append(await self._taken(message, b"+ACK"))
        await heard.unsubscribe()
        return found, len(found)

    async def _taken(self, message: Msg, said: bytes) -> str:
        meta = message.metadata
        body = hashlib.sha256(message.data).hexdigest()[:16]
        if said:
            with contextlib.suppress(nats.errors.NoRespondersError):  # a consumer without acks
                await self.connection.request(message.reply, said, timeout=TIMEOUT_S)
        return (
            f"{message.subject} {meta.sequence.stream} {meta.sequence.consumer} "
            f"{meta.num_delivered} {meta.num_pending} {body}"
        )


def _settings(config: Facts) -> Facts:
    """Return a configuration without the version that returns it, and the server that took over a consumer."""
    metadata = {
        key: value
        for key, value in config.get("metadata", {}).items()
        if key not in ("_nats.ver", "_nats.level", "_headrace.server")
    }
    return {**config, "metadata": metadata}


@contextlib.asynccontextmanager
async def running(folder: Path, plan: Facts) -> AsyncIterator[list[Account]]:
    """Run a server on the directory, and connect as each of its users."""
    async with contextlib.AsyncExitStack() as stack:
        if plan["config"]:
            flags = ("-c", str(folder / plan["config"]), "-js", "-sd", str(folder))
            url = stack.enter_context(stopping(folder, *flags))
        else:
            url = (await stack.enter_async_context(headrace.Server(store_dir=folder))).url
        accounts = []
        for user in plan["users"]:
            connection = await nats.connect(url, **({"user": user, "password": "secret"} if user else {}))
            stack.push_async_callback(connection.close)
            accounts.append(Account(connection, plan))
        yield accounts


@contextlib.contextmanager
def stopping(folder: Path, *flags: str) -> Any:
    """Run `headrace serve` as a process that is stopped cleanly."""
    with serving(folder, *flags) as server:
        yield server.url
        server.process.terminate()
        server.ended()


async def facts_of(accounts: list[Account]) -> list[Facts]:
    return [await account.streams() for account in accounts]


async def settled(accounts: list[Account], wanted: list[Facts] | None, quiet_s: float) -> list[Facts]:
    """Return the facts once they equal `wanted`, or after a timeout; without `wanted`, once they no longer change."""
    deadline = time.monotonic() + TIMEOUT_S
    found = await facts_of(accounts)
    since = time.monotonic()
    while time.monotonic() < deadline:
        if found == wanted or (wanted is None and time.monotonic() - since > quiet_s):
            break
        await asyncio.sleep(0.1)
        before, found = found, await facts_of(accounts)
        if found != before:
            since = time.monotonic()
    return found


async def see_gone(accounts: list[Account], plan: Facts) -> None:
    """Wait for the removal of inactive consumers."""
    for user, stream, consumer in plan["gone"]:
        deadline = time.monotonic() + TIMEOUT_S
        while "error" not in await accounts[user].api(f"CONSUMER.INFO.{stream}.{consumer}"):
            assert time.monotonic() < deadline, f"{consumer} of {stream} is still there"
            await asyncio.sleep(0.05)


async def go_on(folder: Path, accounts: list[Account], plan: Facts) -> list[object]:
    """Publish, pull and ack according to the plan."""
    said: list[object] = []
    for user, subject, data, headers in plan["publishes"]:
        said.append(await accounts[user].publish(subject, data, headers))
    for answer in (True, False):
        for user, stream, consumer, request in plan["pulls"]:
            said.append(await accounts[user].pull(stream, consumer, answer=answer, **request))
    for push in plan["pushes"]:
        found, count = await accounts[push["user"]].push(push["subject"], push.get("count"))
        push["count"] = count
        said.append(found)
    if plan["claims"]:
        said.append(await read_claims(folder, accounts[0], plan["claims"]))
    return said


async def read_claims(folder: Path, account: Account, plan: Facts) -> list[str]:
    """Return the payloads of the references in a stream, or the name of the error."""
    from headrace.claims import ClaimConfig, ClaimError, Claims
    from headrace.claims.config import Ttl

    found = []
    connection = account.connection
    for namespace in plan["namespaces"]:
        config = ClaimConfig(
            namespace["name"],
            threshold=1000,
            compression=namespace["compression"],
            ttl=Ttl(**namespace["ttl"]),
            store={"path": str(folder / "objects")},
        )
        claims = await Claims.open(connection, config)
        consumer = await connection.jetstream().pull_subscribe(
            namespace["subject"], namespace["consumer"], stream=plan["stream"]
        )
        with contextlib.suppress(nats.errors.TimeoutError):
            for message in await consumer.fetch(10, timeout=1):
                try:
                    received = await claims.consumer.read(message)
                    found.append(f"{message.subject} {hashlib.sha256(received.data).hexdigest()[:16]}")
                except ClaimError as error:
                    found.append(f"{message.subject} {type(error).__name__}")
        await claims.close()
    return found


def fsck(folder: Path, plan: Facts, *flags: str) -> Facts:
    """Return the exit code of `headrace fsck` and what it found in all stores of the directory."""
    from headrace.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["fsck", "--json", *flags, str(folder)])
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    for each in found:
        each["streams"] = [stream for stream in each["streams"] if stream["name"] not in plan["ageing"]]
    kept = ("streams", "damage", "offline", "torn", "shut_down_cleanly", "pins")
    return {"code": code, "stores": [{key: each[key] for key in kept} for each in found]}


def read_files(folder: Path, plan: Facts) -> Facts:
    """Read streams without a server, and through the existing pins."""
    found = {}
    for stream, pin in plan["reads"]:
        try:
            reading = headrace.read(folder / "headrace", stream, **({"pin": pin} if pin else {}))
            table = reading.to_table()
            rows = zip(table["seq"].to_pylist(), table["subject"].to_pylist(), strict=True)
            text = "".join(f"{seq} {subject}\n" for seq, subject in rows)
            found[f"{stream} {pin}"] = f"{table.num_rows} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
        except StoreError as error:
            found[f"{stream} {pin}"] = error_name(error)
    return found


async def outcome(folder: Path, plan: Facts, wanted: Facts | None = None) -> Facts:
    """Return all facts about a directory; `wanted` are those of the old version, None while it is asked."""
    found: Facts = {"fsck": fsck(folder, plan), "read": read_files(folder, plan)}
    quiet_s = plan["quiet_s"]
    want = wanted or {}
    try:
        async with running(folder, plan) as accounts:
            await see_gone(accounts, plan)
            found["opened"] = await settled(accounts, want.get("opened"), quiet_s)
            found["said"] = await go_on(folder, accounts, plan)
            found["after"] = await settled(accounts, want.get("after"), quiet_s)
    except StoreError as error:
        found["refused"] = error_name(error)
        return found
    async with running(folder, plan) as accounts:
        found["restarted"] = await settled(accounts, want.get("restarted"), quiet_s)
    found["fsck_after"] = fsck(folder, plan)
    if plan["accept"]:
        found["fsck_accepted"] = fsck(folder, plan, "--accept-loss")
        async with running(folder, plan) as accounts:
            found["accepted"] = await settled(accounts, want.get("accepted"), quiet_s)
    return found


def check(fixtures: Path, name: str, scratch: Path) -> tuple[Facts, Facts]:
    """Return the facts of the version that wrote a directory, and of this one."""
    stored = json.loads((fixtures / f"{name}.json").read_text())
    wanted = unfold(stored["outcome"])
    unpack(fixtures / f"{name}.tar.xz", scratch)
    return wanted, asyncio.run(outcome(scratch / name, stored["plan"], wanted))


def main() -> None:
    """Print the outcomes of directories: `outcome.py FIXTURES SCRATCH NAME...`, for another core."""
    fixtures, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    json.dump({name: check(fixtures, name, scratch) for name in sys.argv[3:]}, sys.stdout)


if __name__ == "__main__":
    main()
