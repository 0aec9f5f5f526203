"""Imports that the JWTs of accounts allow."""

from __future__ import annotations

import time

import pytest

from headrace.auth.operator import OperatorTrust
from headrace.config.options import ServerOptions
from support.identities import Realm


def imported(entry: dict[str, object], activated: str) -> bool:
    """Return whether an account with a grant for one subject may import this entry."""
    realm = Realm()
    exporter, importer = realm.account("A"), realm.account("B")
    activation = exporter.token(importer.public, "activation", subject=activated, kind="service")
    entry = {"name": "i", "account": exporter.public, "type": "service", "token": activation, **entry}
    realm.account("B", imports=[entry])
    operator = realm.operator.token(realm.operator.public, "operator", name="OP")
    preload = tuple((realm.accounts[name].public, token) for name, token in realm.tokens.items())
    plans = OperatorTrust(
        ServerOptions(operators=(operator,), resolver_preload=preload)
    ).make_account_configs(time.time())
    (found,) = next(plan for plan in plans if plan.name == importer.public).imports
    return found.token_accepted


@pytest.mark.parametrize(
    ("entry", "activated", "granted"),
    [
        ({"subject": "open.x", "local_subject": "here"}, "open.>", True),
        ({"subject": "secret.x", "local_subject": "open.x"}, "open.>", False),
        # Before `local_subject`, `to` was the exporter's subject.
        ({"subject": "here", "to": "open.x"}, "open.>", True),
        ({"subject": "open.x", "to": "secret.x"}, "open.>", False),
    ],
)
def test_a_grant_is_for_the_subject_that_is_imported(
    entry: dict[str, object], activated: str, granted: bool
) -> None:
    assert imported(entry, activated) is granted
