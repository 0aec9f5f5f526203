"""Damage is recorded once, even if versions describe it differently."""

from headrace.storage.damage_report import Damage, RecoveryReport


def test_the_same_damage_in_other_words_is_recorded_once() -> None:
    report = RecoveryReport()
    report.add_damage(Damage("the block is rotten", "S", 1, 62, "streams/1/1.seg", True, 1))
    report.add_damage(Damage("the block at 512 is damaged", "S", 1, 62, "streams/1/1.seg", True, 1))
    assert len(report.damage) == 1


def test_damage_in_different_places_is_recorded_separately() -> None:
    report = RecoveryReport()
    report.add_damage(Damage("the block is damaged", "S", 1, 62, "streams/1/1.seg", True, 1))
    report.add_damage(Damage("the block is damaged", "S", 63, 99, "streams/1/1.seg", True, 1))
    report.add_damage(Damage("2 frame(s) before 7 lost"))
    report.add_damage(Damage("3 frame(s) before 19 lost"))
    assert len(report.damage) == 4
