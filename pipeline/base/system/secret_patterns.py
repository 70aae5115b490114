"""Secrets recognised by their position or form: logins in URLs, private keys, `ghp_...`, a JWT.

The token rules are those of detect-secrets. Its rules that guess by entropy or name are not used, because they would
hide digests, file names and words of a program.
"""

from __future__ import annotations

import functools
import re
from functools import cache
from importlib import import_module
from typing import Any

from pipeline.base.system.secrecy import Secrecy, hide, is_harmless, is_reference, looks_secret, secrecy_of

# Each pattern has a text that must be present for a match. The group `before` is kept; a `name` must mean a secret, and
# a `word` must look like one. The user `git` in `ssh://git@host` is not a secret, and is needed for access. A password
# may contain `@`, and also `/` unless the text before it is a port.
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
            r"|[^\s/@:\"'`<>\\]{1,100}:(?!\d{1,5}(?:[/?#\s]|$))[^\s\"'`<>\\]{1,500}(?=@))"
        ),
    ),
    ("jdbc:oracle", re.compile(r"(?<=jdbc:oracle:thin:)[^/@\s\"'<]+/[^@\s\"']+(?=@)")),
    ("LS0tLS1CRUdJTi", re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}=*")),  # "-----BEGIN ", in base64
    ("earer ", re.compile(r"(?<=\b[Bb]earer )(?=\S*\d)[\w.~+/-]{8,}=*")),
)
_CONDA_TOKEN = re.compile(r"(?P<before>https?://[^\s\"'`]{1,200}?/t/)(?P<word>[^/\s\"'`]+)(?=/)")
# A name and its value, in notations that have only separators between them.
_ELEMENT = re.compile(r"(?P<before><(?P<name>[A-Za-z_][\w.-]*)>)(?P<value>[^<>\n]+)(?=</)")
_ENCODED = re.compile(r"(?P<before>%(?:3F|26)(?P<name>[\w.-]+?)%3D)(?P<value>(?:(?!%26|%23)[^\s&\"'])+)", re.I)
_SET = re.compile(
    r"(?P<before>\b(?:setenv|setx|ENV|ARG|set -g?x|configure set|config set)[ \t]+(?P<name>[A-Za-z_][\w.-]*)[ \t]+)"
    r"(?P<value>[^\s\"'`=]+)"
)
_WITHOUT_SCHEME = re.compile(
    r"(?<![\w/:@.+-])(?!mailto:)(?P<before>[\w.-]{1,64}:)(?P<word>[^\s:@/\"'`<>]{6,})(?=@[\w.-]+(?:[:/\s\"'`]|$))"
)
_NETRC = re.compile(
    r"(?P<before>(?:\b(?:machine|login|account)\s+\S+|\bdefault)\s+(?P<name>password)\s+)(?P<value>[^\s\"'`]+)"
)
_PGPASS = re.compile(r"^(?P<before>[^\s:#]+:(?:\d+|\*):[^\s:]+:[^\s:]+:)(?P<secret>\S+)$", re.M)
# A name and its value that have names themselves: "name": "TOKEN", "value": "S"; name=TOKEN,value=S.
_LABELLED = re.compile(
    r"(?P<before>\b(?:parameter)?(?:name|key)(?:\\*[\"'])?\s*[:=>]\s*(?:\\*[\"'])?(?P<name>[A-Za-z_][\w.-]*)\b"
    r"(?:</name>|</key>)?(?:(?!\b(?:name|key)\b)[^{}]){0,100}?\b(?:parameter)?value"
    r"(?:(?:\\*[\"'])?\s*[:=>]\s*(?P<quote>\\*[\"'])|\s*>|:\s+|(?<=,value)=|(?<=,parametervalue)=))"
    r"(?P<value>(?(quote)(?:(?!(?P=quote))[^\n])+|[^\s\"'<>,(){}\[\]]++(?![\"'(])))",
    re.I,
)
_PAIRS = ((":", _PGPASS), ("</", _ELEMENT), ("%3", _ENCODED), ("password", _NETRC), ("", _SET), ("alue", _LABELLED))

_PROGRAMS = {
    "-p": "sshpass mysql mysqldump mysqladmin mariadb mongo mongosh mongodump login cqlsh twine rdesktop 7z 7za",
    "-P": "sqlcmd bcp mosquitto_pub mosquitto_sub ipmitool zip unzip",
    "-w": "ldapsearch ldapadd ldapmodify ldapwhoami",
    "-a": "redis-cli http https",
    "-[a-zA-Z]{0,4}[uU]|--(?:proxy-)?user": "curl smbclient lftp",
    "--(?:src-|dest-)?creds": "skopeo buildah podman",
}
LOGIN_OPTIONS = {program: option for option, programs in _PROGRAMS.items() for program in programs.split()}
"""Pattern of the option that takes a password or a login, by program; `login` is that of docker, podman and others."""
_PROGRAM = re.compile(rf"\b(?:{'|'.join(LOGIN_OPTIONS)})\b")
_COMMANDS = [
    re.compile(
        rf"(?P<before>(?<![\w.-])(?:{programs.replace(' ', '|')})(?![\w:/.=-])"
        rf"(?>'(?!-)[^'\n]*'|\"(?!-)[^\"\n]*\"|[^\n|;&]|(?<=[,\\])\n){{0,200}}?(?<=[\s\"'])(?:{option})"
        rf"(?:\\*[\"'][ \t]*,\s*|[ \t]*+=?+[ \t]*+)(?P<quote>\\*[\"'])?{r'[^:%, ]+[:%,]' if 'user' in option else ''})"
        r"(?!<hidden>|-)(?P<secret>(?(quote)(?:(?!(?P=quote))[^\n])+|[^\s\"'`;|&\\]+))"
    )
    for option, programs in _PROGRAMS.items()
]
_COMMANDS.append(
    re.compile(r"(?P<before>\b(?:wandb|vault)[ \t]+login[ \t]+(?:-\S+[ \t]+)*)(?P<secret>[^\s<\"'-]\S{15,})")
)


def mask_places(text: str) -> str:
    """Replace the secrets recognised by their position."""
    commands = [("", command) for command in _COMMANDS] if _PROGRAM.search(text) else []
    for needle, pattern in (*_PLACES, ("/t/", _CONDA_TOKEN), ("@", _WITHOUT_SCHEME), *commands, *_PAIRS):
        if needle in text:
            text = pattern.sub(_hide, text)
    return text


def _hide(match: re.Match[str]) -> str:
    groups = match.groupdict()
    before = groups.get("before", "")
    secret = match[0].removeprefix(before)
    if "name" in groups:
        secrecy = secrecy_of(match["name"])
        is_visible = secrecy is Secrecy.NONE or is_harmless(secret, secrecy)
    else:
        is_visible = not looks_secret(secret) if "word" in groups else is_reference(secret)
    return match[0] if is_visible else before + hide(secret)


_DETECTORS = (
    *("aws", "azure_storage_key", "github_token", "gitlab_token", "jwt", "mailchimp", "openai"),
    *("pypi_token", "sendgrid", "slack", "square_oauth", "stripe", "telegram_token", "twilio"),
)
"""The modules of detect-secrets whose detectors are used."""

# Every match contains one of these texts. They are searched first, because importing the detectors takes 0.1 s.
_MAY_HOLD = re.compile(
    r"A3T|ABIA|ACCA|AKIA|ASIA|(?i:aws)|AccountKey=|gh[opsur]_|gl[a-z]{2,5}-|GR1348941|eyJ|[0-9a-z]{32}-us\d"
    r"|T3BlbkFJ|pypi-Ag|SG\.|(?i:xox[a-z]-|hooks\.slack\.com)|sq0csp-|k_live_|\d{8}:|AC[a-z0-9]{32}|SK[a-z0-9]{32}"
)

# Forms that detect-secrets 1.5 does not support; each begins with a prefix reserved by its issuer. Sources:
# huggingface.co/docs/hub/security-tokens; github.blog/changelog/2022-10-18-introducing-fine-grained-personal-
# access-tokens; platform.openai.com/docs/api-reference/authentication; docs.anthropic.com/en/api/overview;
# docs.nvidia.com/ngc/gpu-cloud/ngc-user-guide; cloud.google.com/docs/authentication/api-keys;
# developer.hashicorp.com/vault/docs/concepts/tokens; docs.npmjs.com/about-access-tokens;
# docs.databricks.com/aws/en/dev-tools/auth/pat.
_FURTHER = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}"
    r"|\bapi_org_[A-Za-z0-9]{30,}"
    r"|\bgithub_pat_[A-Za-z0-9_]{22,}"
    r"|\bsk-(?:proj|svcacct|admin|ant|or)-[A-Za-z0-9_-]{20,}"
    r"|\bnvapi-[A-Za-z0-9_-]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|\bya29\.[A-Za-z0-9_-]{20,}"
    r"|\bhv[sbr]\.[A-Za-z0-9_-]{24,}"
    r"|\bnpm_[A-Za-z0-9]{36}"
    r"|\bdapi[0-9a-f]{32}"
    r"|\bxapp-\d-[A-Za-z0-9-]{20,}"
)


def replace_tokens(text: str, replacement: str) -> str:
    """Replace each token or key in a text, up to the next separator."""
    text = _FURTHER.sub(replacement, text)
    if not _MAY_HOLD.search(text):
        return text
    for detector in _detectors():
        for pattern in detector.denylist:
            token = re.compile(rf"({pattern.pattern})[\w.=-]*", pattern.flags)
            text = token.sub(functools.partial(_replace_token, replacement, detector), text)
    return text


def _replace_token(replacement: str, detector: Any, match: re.Match[str]) -> str:
    is_token = not hasattr(detector, "is_formally_valid") or detector.is_formally_valid(match[1])
    return replacement if is_token else match[0]


@cache
def _detectors() -> tuple[Any, ...]:
    modules = [vars(import_module(f"detect_secrets.plugins.{name}")) for name in _DETECTORS]
    return tuple(
        member()
        for module in modules
        for member in module.values()
        if isinstance(member, type) and member.__module__ == module["__name__"]
    )
