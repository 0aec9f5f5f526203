"""Configuration of a namespace: keys, defaults and presets of the claim check, and which values are rejected.

A `ClaimConfig` object is always valid. Wrong values are rejected with the key's path. `config_lint`, not this module,
checks what depends on a stream, a store or another program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from headrace.claims.errors import ConfigError
from headrace.deprecation import RenamedAttribute
from headrace.extras import require_extra

BACKENDS = ("folder", "memory", "s3", "minio", "gcs", "azure")
COMPRESSIONS = ("none", "gzip", "zstd")
_CLIENT_KEYS = frozenset(("endpoint", "timeout", "connect_timeout", "retries", "retry_timeout"))
_S3_KEYS = _CLIENT_KEYS | {"region", "access_key_id", "secret_access_key", "session_token", "tags"}
#: Settings of each backend.
_STORE_KEYS: Mapping[str, frozenset[str]] = {
    "folder": frozenset(("path", "sync")),
    "memory": frozenset(),
    "s3": _S3_KEYS,
    "minio": _S3_KEYS,
    "gcs": _CLIENT_KEYS | {"service_account_path", "project", "admin_endpoint"},
    "azure": _CLIENT_KEYS | {"account", "access_key", "subscription_id", "resource_group"},
}
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DAY_S = 86400
_KIND_NAMES: Mapping[type, str] = {dict: "a mapping", list: "a list"}


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long a claim lives, in seconds.

    `max_age` ends every claim; `delete_after_read` decides whether reading leads to deletion, `retention_after_read`
    when (0 = at the confirmed ack). A claim that was not released is never collected while younger than `grace_period`,
    and one that is still needed at `max_age` gets that much more time.
    """

    max_age: int = _DAY_S
    delete_after_read: bool = True
    retention_after_read: int = 300
    grace_period: int = 3600


PRESETS: Mapping[str, Ttl] = {
    "aggressive": Ttl(3600, True, 0, 300),
    "conservative": Ttl(86400, False, 0, 7200),
    "redelivery": Ttl(7200, True, 600, 600),
}


@dataclass(frozen=True, slots=True)
class ClaimConfig:
    """The claim check of one namespace.

    `store` has the backend's own settings (`path` of the folder, `endpoint`, `region`, credentials, ...). They are
    never published. `dead_letter` is a subject that gets the messages whose claims can never be read. With
    `strict_subjects` consumers reject references on subjects that they were not published to. `read_from` are further
    stores with claims of this namespace, from which they are read and deleted, but nothing is written there: mappings
    with `backend`, `bucket` and `store`, each by default as above. `replicas` and `placement` are those of the registry
    and the audit trail, which all namespaces share.
    """

    namespace: str
    enabled: bool = True
    required: bool = False
    threshold: int = 1024 * 1024
    bucket: str = "claims"
    backend: str = "folder"
    compression: str = "none"
    max_size: int = 16 * 1024**3
    clock_skew: int = 60
    audit: bool = True
    dead_letter: str = ""
    strict_subjects: bool = False
    replicas: int = 1
    placement: Mapping[str, Any] = field(default_factory=dict)
    ttl: Ttl = field(default_factory=Ttl)
    store: Mapping[str, Any] = field(default_factory=dict, repr=False)
    read_from: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for path, is_valid, text in _checks(self):
            if not is_valid:
                raise ConfigError(path, text)

    @property
    def stream_settings(self) -> dict[str, Any]:
        """Settings of the streams of the registry and the audit trail."""
        placement = {"placement": dict(self.placement)} if self.placement else {}
        return {"num_replicas": self.replicas, **placement}

    @property
    def buckets(self) -> frozenset[str]:
        """The buckets in which claims of this namespace may be."""
        return frozenset((self.bucket, *(item.get("bucket", self.bucket) for item in self.read_from)))

    def read_configs(self) -> list[ClaimConfig]:
        """Return this configuration once for each further store, with the settings of that store."""
        found = []
        for item in self.read_from:
            is_other = item.get("backend", self.backend) != self.backend
            settings = {"store": {}, **item} if is_other else item
            found.append(replace(self, read_from=(), **settings))
        return found

    @property
    def end_grace_s(self) -> int:
        """How long a claim that is still needed is kept after its expiry.

        The expiry is by the producer's clock, and consumers allow for clock skew: until then the claim must exist.
        """
        return max(self.ttl.grace_period, self.clock_skew)

    @property
    def lifecycle_days(self) -> int:
        """Whole days after which the bucket's own rule may remove what was missed otherwise; at least one."""
        return max(1, -(-(self.ttl.max_age + self.end_grace_s) // _DAY_S))

    published = RenamedAttribute("to_published")

    def to_published(self) -> dict[str, Any]:
        """Return what other programs of this namespace must know; no credentials, no local paths."""
        ttl = {item.name: getattr(self.ttl, item.name) for item in fields(Ttl)}
        keys = ("enabled", "required", "threshold", "bucket", "backend", "compression")
        return {"namespace": self.namespace, **{key: getattr(self, key) for key in keys}, "ttl": ttl}


def preset(name: str, namespace: str, **settings: Any) -> ClaimConfig:
    """Return a configuration with the `ttl` of a preset: aggressive, conservative or redelivery."""
    if name not in PRESETS:
        raise ConfigError("claim_check.preset", f"{name!r} is not one of {', '.join(PRESETS)}")
    return ClaimConfig(namespace, ttl=PRESETS[name], **settings)


def _checks(config: ClaimConfig) -> Iterable[tuple[str, bool, str]]:
    ttl, top = config.ttl, "claim_check"
    yield (
        "namespace",
        bool(_NAMESPACE.fullmatch(config.namespace)),
        f"{config.namespace!r} is not a valid name: use up to 64 letters, digits, - and _, starting with a letter or digit",
    )
    yield f"{top}.threshold", config.threshold >= 0, f"{config.threshold} is negative"
    yield f"{top}.bucket", bool(config.bucket), "a bucket name is required"
    yield (
        f"{top}.backend",
        config.backend in BACKENDS,
        f"{config.backend!r} is not one of {', '.join(BACKENDS)}",
    )
    yield (
        f"{top}.compression",
        config.compression in COMPRESSIONS,
        f"{config.compression!r} is not one of {', '.join(COMPRESSIONS)}",
    )
    yield f"{top}.max_size", config.max_size > 0, f"{config.max_size} is not positive"
    yield f"{top}.clock_skew", config.clock_skew >= 0, f"{config.clock_skew} is negative"
    yield (
        f"{top}.required",
        config.enabled or not config.required,
        "cannot be false while claim_check.required is true: set enabled: true",
    )
    _check_store_keys(f"{top}.store", config.backend, config.store)
    yield from _check_streams(config)
    yield from _check_read_from(config)
    yield from _check_ttl(ttl)


def _check_streams(config: ClaimConfig) -> Iterable[tuple[str, bool, str]]:
    top = "claim_check"
    yield f"{top}.replicas", 1 <= config.replicas <= 5, f"{config.replicas} is not between 1 and 5"
    cluster, tags = config.placement.get("cluster", ""), config.placement.get("tags", [])
    _check_known_keys(config.placement, {"cluster", "tags"}, f"{top}.placement.")
    _check_type(f"{top}.placement.cluster", cluster, str)
    for tag in _check_type(f"{top}.placement.tags", tags, list):
        _check_type(f"{top}.placement.tags", tag, str)


def _check_ttl(ttl: Ttl) -> Iterable[tuple[str, bool, str]]:
    top = "claim_check"
    yield f"{top}.ttl.max_age", ttl.max_age >= 1, f"{ttl.max_age} is less than a second"
    yield (
        f"{top}.ttl.retention_after_read",
        0 <= ttl.retention_after_read <= ttl.max_age,
        f"{ttl.retention_after_read} is not between 0 and max_age ({ttl.max_age})",
    )
    yield (
        f"{top}.ttl.grace_period",
        0 <= ttl.grace_period <= ttl.max_age,
        f"{ttl.grace_period} is not between 0 and max_age ({ttl.max_age})",
    )


def _check_read_from(config: ClaimConfig) -> Iterable[tuple[str, bool, str]]:
    path = "claim_check.read_from"
    for index, item in enumerate(config.read_from):
        _check_type(f"{path}.{index}", item, dict)
        _check_known_keys(item, {"backend", "bucket", "store"}, f"{path}.{index}.")
        for key, value in item.items():
            _check_type(f"{path}.{index}.{key}", value, dict if key == "store" else str)
        yield f"{path}.{index}", bool(item), "it is the same store as the one above"
        backend = item.get("backend", config.backend)
        yield (
            f"{path}.{index}.backend",
            backend in BACKENDS,
            f"it is not one of {', '.join(BACKENDS)}",
        )
        yield f"{path}.{index}.bucket", bool(item.get("bucket", "-")), "a bucket name is required"
        _check_store_keys(f"{path}.{index}.store", backend, item.get("store", {}))


def _check_store_keys(path: str, backend: str, settings: Mapping[str, Any]) -> None:
    for key in settings:
        if key not in (known := _STORE_KEYS[backend]):
            names = f"known keys are {', '.join(sorted(known))}" if known else "it has no settings"
            raise ConfigError(f"{path}.{key}", f"unknown key of backend {backend}; {names}")


def from_mapping(document: Mapping[str, Any]) -> ClaimConfig:
    """Return the configuration in a document with `namespace` and `claim_check`."""
    _check_known_keys(document, {"namespace", "claim_check"}, "")
    namespace = _check_type("namespace", document.get("namespace"), str)
    check = _check_type("claim_check", document.get("claim_check", {}), dict)
    allowed = {item.name for item in fields(ClaimConfig)} - {"namespace"}
    _check_known_keys(check, allowed | {"preset"}, "claim_check.")
    values = {
        key: _check_type(f"claim_check.{key}", value, _get_field_type(ClaimConfig, key))
        for key, value in check.items()
        if key not in ("ttl", "preset")
    }
    return ClaimConfig(namespace, ttl=_parse_ttl(check), **values)


def _parse_ttl(check: Mapping[str, Any]) -> Ttl:
    name = check.get("preset")
    if name is not None and name not in PRESETS:
        raise ConfigError("claim_check.preset", f"{name!r} is not one of {', '.join(PRESETS)}")
    given = _check_type("claim_check.ttl", check.get("ttl", {}), dict)
    _check_known_keys(given, {item.name for item in fields(Ttl)}, "claim_check.ttl.")
    values = {
        key: _check_type(f"claim_check.ttl.{key}", value, _get_field_type(Ttl, key))
        for key, value in given.items()
    }
    return replace(PRESETS[name] if name else Ttl(), **values)


def _get_field_type(owner: type, key: str) -> type:
    names = {"int": int, "bool": bool, "str": str}
    text = str(next(item.type for item in fields(owner) if item.name == key))
    return list if text.startswith("Sequence") else names.get(text, dict)


def _check_type(path: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        # A value of these keys, or one that contains further ones, may be or contain a credential.
        is_secret = path.startswith(("claim_check.store", "claim_check.read_from"))
        is_shown = not is_secret and not {kind, type(value)} & _KIND_NAMES.keys()
        given = repr(value) if is_shown else f"a value of type {type(value).__name__}"
        raise ConfigError(path, f"{given} is not {_KIND_NAMES.get(kind) or f'of type {kind.__name__}'}")
    return value


def _check_known_keys(given: Mapping[str, Any], allowed: set[str], prefix: str) -> None:
    for key in given:
        if key not in allowed:
            raise ConfigError(f"{prefix}{key}", f"unknown key; known keys are {', '.join(sorted(allowed))}")


def load_all(path: str | Path) -> list[ClaimConfig]:
    """Load the configurations of a YAML file, one per document."""
    require_extra("claims", "yaml")
    import yaml

    try:
        documents = [item for item in yaml.safe_load_all(Path(path).read_text()) if item is not None]
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from error
    except yaml.YAMLError as error:
        # Neither the error's text nor a traceback: they quote the file, which may contain credentials.
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(str(path), f"cannot be read: it is not valid YAML{where}") from None
    if not documents:
        raise ConfigError(str(path), "contains no configuration")
    return [from_mapping(_check_type(str(path), document, dict)) for document in documents]


def load(path: str | Path, namespace: str = "") -> ClaimConfig:
    """Load the configuration of a namespace from a YAML file; without a name, the only one in it."""
    found = [config for config in load_all(path) if namespace in ("", config.namespace)]
    if len(found) != 1:
        hint = f" of namespace {namespace!r}, not one" if namespace else "; choose a namespace"
        raise ConfigError("namespace", f"{path} has {len(found)} configurations{hint}")
    return found[0]
