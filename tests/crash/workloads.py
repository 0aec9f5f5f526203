"""Workloads for crash tests: short sequences of changes, during which the power may fail at any operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from random import Random

from headrace.sim.workloads.store_driver import StoreDriver

Workload = Callable[[StoreDriver, Random], None]
Step = Callable[[StoreDriver, Random, str], None]

SUBJECTS = (b"a", b"a.b", b"orders.eu.1", b"orders.us.2")
HEADER = b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"


def some(driver: StoreDriver, rng: Random, name: str, count: int, size: int = 60) -> None:
    for _ in range(count):
        header = HEADER if rng.random() < 0.3 else b""
        ttl_s = rng.choice((0, 0, 60, 0xFFFFFFFF))
        driver.append(name, rng.choice(SUBJECTS), rng.randrange(size), header, ttl_s)


def live(driver: StoreDriver, name: str) -> list[int]:
    return sorted(driver.get_model(name).messages)


def append(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    for _ in range(14):
        some(driver, rng, "A", rng.randrange(1, 6), 300)
        driver.commit_and_wait() if rng.random() < 0.6 else driver.commit()
    driver.run_until_idle()


def remove(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    some(driver, rng, "A", 12)
    driver.commit_and_wait()
    for _ in range(8):
        driver.remove("A", rng.choice(live(driver, "A")))
        some(driver, rng, "A", rng.randrange(2))
        driver.commit()
    driver.remove("A", driver.append("A"))  # appended and removed in one frame
    driver.run_until_idle()


def replace(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    for _ in range(16):
        driver.replace("A", rng.choice(SUBJECTS), rng.randrange(200))
        driver.commit_and_wait() if rng.random() < 0.5 else driver.commit()
    driver.run_until_idle()


def streams(driver: StoreDriver, rng: Random) -> None:
    for number in range(6):
        driver.create(f"S{number}", first_seq=1 + 10 * number)
        for name in sorted(driver.model.logs):
            some(driver, rng, name, rng.randrange(3))
        driver.commit_and_wait() if rng.random() < 0.5 else driver.commit()
    driver.run_until_idle()
    for name in sorted(driver.model.logs):
        driver.remove_below(name, driver.get_model(name).last_seq)
    driver.run_until_idle()


def large(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    driver.create("B")
    for size in (10, 9_000, 33_000, 100, 70_000, 20, 40_000):
        driver.append("A", b"big", size)
        driver.append("B", b"small", 10)
        driver.commit_and_wait() if rng.random() < 0.5 else driver.commit()
    driver.remove("A", 3)
    driver.run_until_idle()


def checkpoint(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    driver.create("B")
    for _ in range(5):
        some(driver, rng, "A", 4)
        some(driver, rng, "B", 2)
        driver.commit()
        driver.checkpoint()
        driver.remove("A", rng.choice(live(driver, "A")))
        some(driver, rng, "A", 1)
        driver.commit()
    driver.run_until_idle()


def rotate(driver: StoreDriver, rng: Random) -> None:
    """Write enough to fill several journal files and segments: they are sealed, retired and used again."""
    driver.create("A")
    for _ in range(12):
        some(driver, rng, "A", 5, 2_400)
        if rng.random() < 0.3:
            driver.remove("A", rng.choice(live(driver, "A")))
        driver.commit()
    driver.run_until_idle()


def bursts(driver: StoreDriver, rng: Random) -> None:
    """Idle times between bursts: journal files are removed, and new ones are made."""
    driver.create("A")
    for _ in range(3):
        for _ in range(6):
            some(driver, rng, "A", 5, 2_400)
            driver.commit()
        driver.release_idle_resources()
        driver.remove("A", rng.choice(live(driver, "A")))
    driver.run_until_idle()


def compact(driver: StoreDriver, rng: Random) -> None:
    """Segments become sparse and are compacted."""
    driver.create("A")
    for _ in range(5):
        some(driver, rng, "A", 8, 1_200)
        driver.commit()
    for share in (11, 7):  # remove a few at a time
        for seq in live(driver, "A")[::share]:
            driver.remove("A", seq)
        driver.run_until_idle()
        driver.checkpoint()
    for seq in live(driver, "A"):
        if seq % 8:
            driver.remove("A", seq)
            if seq % 3 == 1:
                driver.commit()
    driver.run_until_idle()
    driver.compact()
    some(driver, rng, "A", 5)
    driver.run_until_idle()
    driver.checkpoint()


def compressed(driver: StoreDriver, rng: Random) -> None:
    """Compression is switched on, off and on again, while segments are filled, compacted and opened again."""
    driver.create("A")
    driver.create("B")
    driver.compress("A")
    for number in range(8):
        some(driver, rng, "A", 5, 1_200)
        some(driver, rng, "B", 2, 600)
        driver.append("A", b"big", rng.choice((5_000, 9_000)))
        driver.commit_and_wait() if rng.random() < 0.5 else driver.commit()
        driver.remove("A", rng.choice(live(driver, "A")))
        if number in (2, 5):
            driver.compress(rng.choice("AB"), number == 5)
        if number % 3 == 2:
            driver.checkpoint()
    for seq in live(driver, "A"):
        if seq % 5:
            driver.remove("A", seq)
    driver.run_until_idle()
    driver.compact()
    driver.checkpoint()


def squeezed(driver: StoreDriver, rng: Random) -> None:
    """The same with clean shutdowns and pins in between."""
    for name in "AB":
        driver.create(name)
        driver.compress(name)
    driver.run_until_idle()
    for _ in range(3):
        some(driver, rng, "A", 8, 1_500)
        some(driver, rng, "B", 3, 1_500)
        driver.run_until_idle()
        driver.pin("A")
        for seq in live(driver, "A")[::3]:
            driver.remove("A", seq)
        driver.unpin()
        driver.restart()


def facts(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    driver.put(b"n", b"")
    for number in range(12):
        driver.put(b"c/%d" % (number % 4), b"value %d" % number)
        driver.merge(b"c/%d" % rng.randrange(min(number, 3) + 1), b"+%d" % number)
        driver.merge(b"n", b"%d." % number)
        if number % 5 == 4:
            driver.delete_key(b"c/%d" % (number % 4))
        some(driver, rng, "A", 1)
        if number % 4 != 1:
            driver.commit()
        if number % 4 in (1, 3):  # also started in the middle of a frame
            driver.checkpoint()
    driver.run_until_idle()


def lifetimes(driver: StoreDriver, rng: Random) -> None:
    """A stream is deleted and created again under its name, before and after checkpoints."""
    for number in range(5):
        driver.create("A", first_seq=1 + number)
        some(driver, rng, "A", 4, 2_500)
        driver.commit_and_wait() if rng.random() < 0.7 else driver.commit()
        if number % 2:
            driver.checkpoint()
            some(driver, rng, "A", 2)
            driver.commit_and_wait()
        driver.delete("A")
        if number % 2:
            driver.run_until_idle()
    driver.create("A")
    driver.run_until_idle()


def memory(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    driver.create("M1")
    for number in range(8):
        some(driver, rng, "M1", 3)
        some(driver, rng, "A", 1)
        driver.remove("M1", live(driver, "M1")[0])
        driver.commit()
        if number % 3 == 2:
            driver.checkpoint()
    driver.delete("M1")
    driver.run_until_idle()


def advance(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    for number in range(1, 7):
        driver.advance("A", driver.get_model("A").last_seq + rng.randrange(1, 40))
        some(driver, rng, "A", number % 3)
        driver.commit_and_wait() if rng.random() < 0.5 else driver.commit()
        driver.remove_below("A", driver.get_model("A").last_seq + rng.randrange(-2, 3))
        driver.commit()
        if number % 3 == 0:
            driver.checkpoint()
    driver.advance("A", 1 << 40)
    some(driver, rng, "A", 2)
    driver.run_until_idle()


def pins(driver: StoreDriver, rng: Random) -> None:
    driver.create("A")
    for number in range(4):
        some(driver, rng, "A", 5, 800)
        driver.run_until_idle()
        driver.pin("A")
        for seq in live(driver, "A")[: 3 + number]:
            driver.remove("A", seq)
        driver.run_until_idle()
        driver.checkpoint()
        if number % 2:
            driver.unpin()
    driver.run_until_idle()


def keys(driver: StoreDriver, rng: Random) -> None:
    """Subjects with one message that is removed: they are dropped, and the others get new ids."""
    driver.create("A")
    driver.create("M")
    for turn in range(5):
        for number in range(12):
            driver.append(rng.choice("AAM"), b"key.%d.%d" % (turn, number), rng.randrange(700))
        some(driver, rng, "A", 2)
        driver.commit_and_wait()
        for name in "AM":
            doomed = live(driver, name)
            for seq in rng.sample(doomed, len(doomed) * 3 // 4):
                driver.remove(name, seq)
        driver.commit()
        driver.checkpoint()
    driver.run_until_idle()


def crowd(driver: StoreDriver, rng: Random) -> None:
    """Streams are created and deleted while a checkpoint is running and blocks wait to be written."""
    for _ in range(7):
        for name in "ABCD":
            if name not in driver.model.logs:
                driver.create(name)
            some(driver, rng, name, rng.randrange(6), 1_500)
        driver.commit()
        driver.start_checkpoint()
        _steps(driver, rng.randrange(8))
        for name in rng.sample("ABCD", 2):
            some(driver, rng, name, rng.randrange(8), 1_500)
            if rng.random() < 0.5:
                driver.delete(name)
            else:
                driver.remove_below(name, driver.get_model(name).last_seq + 1)
            _steps(driver, rng.randrange(4))
        if rng.random() < 0.5:
            driver.commit()
        _steps(driver, rng.randrange(20))
    driver.run_until_idle()


def _steps(driver: StoreDriver, count: int) -> None:
    for _ in range(count):
        driver.step()


def restart(driver: StoreDriver, rng: Random) -> None:
    """Clean shutdowns in between."""
    driver.create("A")
    for _ in range(4):
        some(driver, rng, "A", 4)
        driver.remove("A", rng.choice(live(driver, "A")))
        driver.put(b"k", b"%d" % rng.randrange(100))
        driver.restart()


def everything(driver: StoreDriver, rng: Random) -> None:
    """A random walk over all changes."""
    _walk(driver, rng, STEPS)


def turmoil(driver: StoreDriver, rng: Random) -> None:
    """The same, while checkpoints are running."""
    _walk(driver, rng, (*STEPS, *HASTE, *HASTE))


def compressed_turmoil(driver: StoreDriver, rng: Random) -> None:
    """The same, with streams that are compressed, or no longer."""
    _walk(driver, rng, (*STEPS, *HASTE, *COMPRESSION))


def _walk(driver: StoreDriver, rng: Random, steps: tuple[Step, ...]) -> None:
    driver.create("A")
    for _ in range(60):
        if not driver.model.logs:
            driver.create("A")
        name = rng.choice(sorted(driver.model.logs))
        rng.choice(steps)(driver, rng, name)
        if rng.random() < 0.4:
            driver.commit()
    driver.run_until_idle()


def _remove_one(driver: StoreDriver, rng: Random, name: str) -> None:
    if driver.get_model(name).messages:
        driver.remove(name, rng.choice(live(driver, name)))


def _create_one(driver: StoreDriver, rng: Random, name: str) -> None:
    fresh = rng.choice("ABCDM")
    if fresh not in driver.model.logs:
        driver.create(fresh)


def _note(driver: StoreDriver, rng: Random, name: str) -> None:
    if b"k" in driver.model.metadata:
        driver.merge(b"k", b"+")
    else:
        driver.put(b"k", b"v")


STEPS: tuple[Step, ...] = (
    lambda driver, rng, name: some(driver, rng, name, 3),
    lambda driver, rng, name: some(driver, rng, name, 2, 3_000),
    lambda driver, rng, name: some(driver, rng, name, 1, 80_000),
    _remove_one,
    _remove_one,
    lambda driver, rng, name: driver.replace(name, b"a"),
    lambda driver, rng, name: driver.remove_below(name, driver.get_model(name).last_seq),
    lambda driver, rng, name: driver.advance(name, driver.get_model(name).last_seq + 3),
    _create_one,
    _create_one,
    lambda driver, rng, name: driver.delete(name),
    _note,
    lambda driver, rng, name: driver.delete_key(b"k"),
    lambda driver, rng, name: driver.checkpoint(),
    lambda driver, rng, name: driver.run_until_idle(),
    lambda driver, rng, name: driver.compact(),
)

HASTE: tuple[Step, ...] = (
    lambda driver, rng, name: driver.start_checkpoint(),
    lambda driver, rng, name: _steps(driver, rng.randrange(12)),
)

COMPRESSION: tuple[Step, ...] = (
    lambda driver, rng, name: driver.compress(name),
    lambda driver, rng, name: driver.compress(name, rng.random() < 0.5),
    lambda driver, rng, name: some(driver, rng, name, 6, 1_500),
    lambda driver, rng, name: driver.run_until_idle(),
)

SCRIPTED: dict[str, Workload] = {
    workload.__name__: workload
    for workload in (
        append,
        remove,
        replace,
        streams,
        large,
        checkpoint,
        rotate,
        bursts,
        compact,
        compressed,
        squeezed,
        compressed_turmoil,
        facts,
        lifetimes,
        memory,
        advance,
        pins,
        keys,
        crowd,
        restart,
        everything,
        turmoil,
    )
}

#: One letter per operation; a small workload is a word of at most three letters, with a tick after each.
LETTERS: dict[str, Callable[[StoreDriver], object]] = {
    "a": lambda driver: driver.append("A"),
    "b": lambda driver: driver.append("B", b"b", 700),
    "l": lambda driver: driver.append("A", b"big", 40_000),
    "r": lambda driver: driver.remove("A", live(driver, "A")[0]) if live(driver, "A") else None,
    "e": lambda driver: driver.remove("A", live(driver, "A")[-1]) if live(driver, "A") else None,
    "p": lambda driver: driver.remove_below("A", driver.get_model("A").last_seq + 1),
    "v": lambda driver: driver.advance("A", driver.get_model("A").last_seq + 5),
    "u": lambda driver: driver.replace("A", b"a"),
    "f": lambda driver: driver.put(b"k", b"new"),
    "n": lambda driver: driver.merge(b"k", b"+"),
    "d": lambda driver: driver.delete_key(b"k2"),
    "c": lambda driver: driver.checkpoint(),
    "x": lambda driver: (driver.delete("B"), driver.create("B", first_seq=9)),
    "y": lambda driver: (driver.delete("B"), driver.start_checkpoint(), driver.create("B", first_seq=5)),
    "m": lambda driver: driver.append("M"),
    "k": lambda driver: driver.compact(),
    "z": lambda driver: driver.restart(),
}


def prepare(driver: StoreDriver) -> None:
    """Create the initial state of every small workload: streams and metadata, committed, partly in a checkpoint."""
    for name in "ABM":
        driver.create(name)
    for _ in range(3):
        driver.append("A", b"a", 50)
        driver.append("B", b"b", 50)
    driver.put(b"k", b"v")
    driver.put(b"k2", b"v")
    driver.commit_and_wait()
    driver.checkpoint()
    driver.append("A", b"a.b", 50)
    driver.merge(b"k", b"0")
    driver.run_until_idle()


def words(length: int = 3) -> Iterator[str]:
    for size in range(1, length + 1):
        for letters in product(LETTERS, repeat=size):
            yield "".join(letters)


def spell(driver: StoreDriver, word: str) -> None:
    """Run a small workload: each letter is an operation in its own frame."""
    for letter in word:
        if letter == "m" and "M" not in driver.model.logs:
            driver.create("M")
        LETTERS[letter](driver)
        driver.commit_and_wait()
    driver.run_until_idle()
