"""The model of the store follows the rules of the store's interface."""

from headrace.sim.checkers.store_model import StoreModel


def test_sequences_and_removals() -> None:
    model = StoreModel()
    log = model.create("S", first_seq=5)
    assert (log.first_seq, log.last_seq) == (5, 4)
    assert [log.append(b"a", b"", b"x", n) for n in range(4)] == [5, 6, 7, 8]
    assert log.remove(5)
    assert not log.remove(5)
    assert log.first_seq == 6
    assert log.remove_below(8) == 2
    assert (log.first_seq, log.last_seq) == (8, 8)
    assert log.remove(8)
    assert (log.first_seq, log.last_seq) == (9, 8)
    log.advance(20)
    assert (log.first_seq, log.last_seq) == (21, 20)
    assert log.append(b"a", b"", b"x", 9) == 21
    assert log.remove_below(30) == 1
    assert (log.first_seq, log.last_seq) == (30, 29)


def test_a_frozen_state_thaws_to_an_equal_one() -> None:
    model = StoreModel()
    model.create("B").append(b"b", b"h", b"p", 1, 2)
    model.create("A")
    model.create("M", memory=True).append(b"m", b"", b"", 1)
    model.put(b"k", b"v")
    model.merge(b"k", b"+")
    model.merge(b"n", b"1")
    model.put(b"gone", b"")
    model.delete_key(b"gone")
    frozen = model.to_state()
    assert [name for name, _ in frozen[0]] == ["A", "B"]
    assert frozen[1] == ((b"k", b"v+"), (b"n", b"1"))
    assert StoreModel.from_state(frozen).to_state() == frozen
    model.delete("A")
    assert model.to_state() != frozen
