"""Secrets that stand in a place of their own: private keys, logins in addresses, options of well-known programs."""

from __future__ import annotations

import re

from pipeline.base.system.secret_names import Secrecy, secrecy_of
from pipeline.base.system.secret_values import HIDDEN, hide, is_harmless, is_reference, looks_secret

# Each with what a text must hold to have one. What stands `before` stays.
# The `git` of `ssh://git@host` is no secret, and without it nobody gets in. A password may hold `@`; and `/`, if what
# stands before it is no port.
_PLACES = (
    (
        "PRIVATE KEY",
        re.compile(
            r"-----BEGIN [A-Z\d ]*PRIVATE KEY[A-Z -]*-----.*?(?:-----END [A-Z\d ]*PRIVATE KEY[A-Z -]*-----|\Z)", re.S
        ),
    ),
    (
        "://",
        re.compile(
            r"(?<=://)(?!git@|<hidden>@)(?:[^/?#\s\"'`<>;=\\]{1,500}(?=@)"
            r"|[^\s/@:\"'`<>\\]{1,100}:(?!\d{1,5}(?:[/?#\s]|$))[^\s\"'`<>?\\]{1,500}(?=@))"
        ),
    ),
    ("jdbc:oracle", re.compile(r"(?<=jdbc:oracle:thin:)[^/@\s\"'<]+/[^@\s\"']+(?=@)")),
    ("sshpass", re.compile(r"(?P<before>\bsshpass[ \t]+-p[ \t]*)(?!<hidden>)[^\s\"']+")),
    (
        "curl",
        re.compile(
            r"(?P<before>\bcurl\b[^\n|;&]{0,300}?[ \t](?:-u|--user)[ \t=]*[\"']?[\w.@-]+:)(?!<hidden>)[^\s\"']+"
        ),
    ),
    ("mysql", re.compile(r"(?P<before>\bmysql(?:dump|admin)?\b[^\n|;&]{0,300}?[ \t]-p)(?!<hidden>)[^\s\"']+")),
    ("LS0tLS1CRUdJTi", re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}=*")),  # "-----BEGIN ", in base64
    ("earer ", re.compile(r"(?<=\b[Bb]earer )(?=\S*\d)[\w.~+/-]{8,}=*")),
)
_CONDA_TOKEN = re.compile(r"(https?://[^\s\"'`]{1,200}?/t/)([^/\s\"'`]+)(?=/)")
# A name and its value, in notations in which nothing else stands between them.
_ELEMENT = re.compile(r"(?P<before><(?P<name>[A-Za-z_][\w.-]*)>)(?P<value>[^<>\n]+)(?=</)")
_ENCODED = re.compile(r"(?P<before>%(?:3F|26)(?P<name>[\w.-]+?)%3D)(?P<value>(?:(?!%26|%23)[^\s&\"'])+)", re.I)
_SET = re.compile(
    r"(?P<before>\b(?:setenv|setx|ENV|ARG|set -g?x|configure set|config set)[ \t]+(?P<name>[A-Za-z_][\w.-]*)[ \t]+)"
    r"(?P<value>[^\s\"'`=]+)"
)
_WITHOUT_SCHEME = re.compile(
    r"(?<![\w/:@.+-])(?!mailto:)(?P<user>[\w.-]{1,64}:)(?P<secret>[^\s:@/\"'`<>]{6,})(?=@[\w.-]+(?:[:/\s\"'`]|$))"
)
_NETRC = re.compile(r"(?P<before>\blogin[ \t]+\S+[ \t]+(?P<name>password)[ \t]+)(?P<value>[^\s\"'`]+)")


def mask_places(text: str) -> str:
    """Replace the secrets that are told by the place in which they stand."""
    for needle, place in _PLACES:
        if needle in text:
            text = place.sub(_hide_place, text)
    if "/t/" in text:
        text = _CONDA_TOKEN.sub(lambda match: match[1] + (HIDDEN if looks_secret(match[2]) else match[2]), text)
    if "@" in text:
        text = _WITHOUT_SCHEME.sub(_hide_password, text)
    for needle, pair in (("</", _ELEMENT), ("%3", _ENCODED), ("login", _NETRC), ("", _SET)):
        if needle in text:
            text = pair.sub(_hide_pair, text)
    return text


def _hide_place(match: re.Match[str]) -> str:
    before = match.groupdict().get("before", "")
    secret = match[0].removeprefix(before)
    return before + (secret if is_reference(secret) else hide(secret))


def _hide_password(match: re.Match[str]) -> str:
    return match["user"] + (HIDDEN if looks_secret(match["secret"]) else match["secret"])


def _hide_pair(match: re.Match[str]) -> str:
    secrecy = secrecy_of(match["name"])
    is_visible = secrecy is Secrecy.NONE or is_harmless(match["value"], secrecy)
    return match[0] if is_visible else f"{match['before']}{HIDDEN}"
