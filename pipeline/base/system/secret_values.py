"""What a value looks like: a secret, a variable that stands for one, or neither, whatever its name."""

from __future__ import annotations

import re

from pipeline.base.system.secret_names import Secrecy, word_set

HIDDEN = "<hidden>"
"""Stands in a record where a secret was."""

# What stands for a value: a variable, a field that is filled in later.
_REFERENCE = re.compile(
    r"\$\{[^}]*\}|\$[A-Z_][A-Z0-9_]*\b|\$\([^)]*\)?|\{\{.*?\}\}|\{[A-Za-z_][\w.\[\]'\"()]*\}|%[A-Z_]+%|%\(\w+\)s|\.{3}"
)
_SCHEME = re.compile(r"(?:basic|bearer|token|digest|negotiate|apikey)\b", re.IGNORECASE)
_NO_VALUES = frozenset(("", "true", "false", "none", "null", "yes", "no", "on", "off", HIDDEN))
_METHODS = word_set(
    "anonymous auto basic bearer default digest iam int kerberos lambda ldap negotiate ntlm oauth oauth2 optional"
    " password required sasl self ssl str string token"
)
_PATH = re.compile(
    r"(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@ -]*)+"
    r"|(?:[\w.-]+/)*[\w-]+\.(?:cfg|crt|ini|jks|json|key|p12|pem|pub|txt|ya?ml)"
)
_NUMBER = re.compile(r"[+-]?(?:\d{1,5}|\d*\.\d+)(?:[eE][+-]?\d+)?")
_PLAIN_WORD = re.compile(r"[A-Za-z_./:<>|\[\](){}-]*\d{0,4}[\])}>]?|[\w.]+\(.*|[\w-]+=")


def is_harmless(value: str, secrecy: Secrecy) -> bool:
    """Tell whether a value can be no secret, whatever its name: empty, `true`, a variable; unless certain, a path."""
    if value.lower() in _NO_VALUES:
        return True
    rest = _SCHEME.sub("", _REFERENCE.sub("", value), count=1)
    if rest != value and not re.search(r"[A-Za-z0-9]", rest):
        return True
    if secrecy is Secrecy.CERTAIN:
        return False
    return value in ("NAME", "VALUE") or value.lower() in _METHODS or bool(_NUMBER.fullmatch(value)) or is_path(value)


def is_path(value: str) -> bool:
    """Tell whether a value is the path of a file, and no key in base64 that begins with a slash."""
    if not _PATH.fullmatch(value):
        return False
    return not any(
        len(part) > 24 and re.search(r"\d", part) and not part.islower() for part in re.split(r"[/\\]", value)
    )


def looks_secret(value: str) -> bool:
    """Tell whether a word looks like a secret rather than like a word of a language or of a program."""
    value = _REFERENCE.sub("", value)
    return len(value) >= 6 and not re.search(r"\s", value) and not _PLAIN_WORD.fullmatch(value)


def is_reference(value: str) -> bool:
    """Tell whether a value only stands for one: `$HF_TOKEN`, `${USER}:${TOKEN}`."""
    return not re.search(r"[A-Za-z0-9]", _REFERENCE.sub("", value))


def hide(value: str) -> str:
    """Give what stands in the place of a secret: as many lines as it has."""
    return HIDDEN + "\n" * value.count("\n")
