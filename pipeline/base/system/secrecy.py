"""Detection of secrets by name (`HF_TOKEN`, `--api-key`, but not `max_tokens`), by position, or by form.

Complete words of a name are compared, because values that are hidden needlessly must be passed again to reproduce a
run. Positions are logins in URLs, private keys and options of programs. The forms are those of tokens (`ghp_...`, a
JWT), by the rules of detect-secrets. Its rules that guess by entropy or name are not used, because they would hide
digests, file names and words of a program.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
from functools import cache, lru_cache
from importlib import import_module
from typing import Any


class Secrecy(enum.IntEnum):
    """The certainty that a name is that of a secret.

    `AMBIGUOUS` names, such as `token` and `key`, have other meanings too: in prose and source code, their value is
    hidden only if it looks like a secret. For `LIKELY` and `AMBIGUOUS` names, values that cannot be secrets, such as
    small numbers and paths, stay visible.
    """

    NONE = 0
    AMBIGUOUS = 1
    LIKELY = 2
    CERTAIN = 3


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def word_set(words: str) -> frozenset[str]:
    """Return the set of words in a list."""
    return frozenset(words.split())


# Owners whose tokens, keys and passwords are written as one word: SSHPASS, HFTOKEN, AWSKEY.
_GLUED = (
    "admin|anthropic|api|app|aws|azure|bot|client|db|deploy|docker|elastic|ftp|gcp|gh|git|github|gitlab|google|hf|http"
    "|huggingface|kafka|kaggle|key|ldap|login|mail|mongo|mysql|openai|oracle|pg|postgres|proxy|rabbit|redis|registry"
    "|service|session|smtp|sql|ssh|user|vnc|wandb|web"
)
# Words that mean a secret, alone or as part of a word: DB_PASSWORD, PGPASSWORD, clientSecret, SECRET_KEY_BASE.
_CERTAIN = re.compile(
    r".*(?:password|passwd|passphrase|passwort|kennwort).*"
    r"|.*(?:secrets?|apikeys?)|passcodes?|jwt|psk|authorization|j?sessionid|phpsessid"
    r"|(?!old).+pwd"
    rf"|(?:{_GLUED}|access|auth|bearer|csrf|id|identity|oauth|refresh|registry|sas|xsrf)tokens?"
    rf"|(?:{_GLUED}|access|account|auth|encryption|license|master|private|priv|sas|signing|storage)keys?"
    rf"|(?:{_GLUED}|keystore|my|root|store|sudo|truststore)(?:pass|pw)"
)
# Words that also mean a secret, but whose value is often the path of a file: GOOGLE_APPLICATION_CREDENTIALS.
_LIKELY = re.compile(r".*credentials?|creds?")
# Pairs of words that mean a secret: API_KEY_PROD, ACCESS_TOKEN_READ.
_WORD_PAIRS = frozenset(
    {
        *((word, "key") for word in word_set("access api auth encryption private secret signing subscription")),
        *((word, "token") for word in word_set("access api auth bearer oauth refresh session")),
        ("auth", "header"),
    }
)
# Endings of names that describe a secret without containing it: SSH_KEY_FILE, password_length, token_type.
_ABOUT = word_set(
    "age arn count dim dir directory dirs enabled endpoint env expires expiry field file filename files folder"
    " format len length limit manager max min mode name names num path paths policy prompt rate ref required rotation"
    " size store timeout ttl type types url variable version"
)
# Beginnings of names that are predicates or counts: has_password, num_secrets.
_ASKED = word_set("has is max min n no num")
# Words that may follow the decisive word: TOKEN_2, HF_TOKEN_READ, PASSWORD_B64.
_DROPPED = word_set("b base default dev hex json new old org pem plain prod raw read ro rw staging str write")
_EXTENSIONS = word_set("c cfg conf cpp cu h html ini ipynb jl js json log md py sh so sql toml ts txt xml yaml yml")
# Words whose meaning depends on the word before: `pad_token` is a text token, `sort_key` a column.
_NO_TOKEN = word_set(
    "add added any assistant audio bad batch begin begins boa boi bos by class cls code context cross decoder"
    " dist draft dummy encoder end eoi eos eot eov extra fake filler first forced gist global ignore image img in"
    " input last latent loss mask max mem memory min n new newline next num oov out output pad patch per pool"
    " pooling prev previous prompt query readout reg register response self sentence sep soi space special src"
    " start stop sub suppress target text tgt think time total train unk valid video vision visual vocab word"
)
_NO_KEY = word_set(
    "action any arg args arrow attention attn audio batch bucket by cache caption category checkpoint ckpt class"
    " col column composite config content data dataset date default dict dst embedding enter entry env escape"
    " experiment feature field file first foreign from function group head host hot image img in index input item"
    " job join json k kv label last layer log logit logits lookup loss main map mask max message messages metric"
    " min model module monitor n name natural nested new next num object obs observation old output param"
    " parameter params parent partition path per prefix press prev primary prng prompt pub public q query question"
    " random record reference resume return reward rng root row run s sample score search seed sort source split"
    " src state study tag target text time timestamp to train translation unique v val value video weight weights"
)
_NO_PASS = word_set(
    "backward band double fast first forward full high inference last low multi n next num one per prefill second"
    " single third three train training two val validation"
)
_NO_PATTERN = word_set("exclude file glob ignore include key match name path regex search")
_OF_ACCOUNTS = word_set(
    "access admin anthropic api auth aws azure bearer bot client csrf deploy discord gcp gh git github gitlab"
    " google hf hub huggingface jwt my npm oauth openai personal private pypi refresh secret service session"
    " signing slack ssh stripe user wandb"
)


@lru_cache(maxsize=4096)
def secrecy_of(name: str) -> Secrecy:
    """Rate a name: a key with its parents (`workload.environ.HF_TOKEN`), a flag, a variable, a header."""
    parents, _, last = name.strip("-").rpartition(".")
    if last.lower() in _EXTENSIONS:
        return Secrecy.NONE
    inherited = secrecy_of(parents) if parents else Secrecy.NONE  # credentials.user, secrets.database
    secrecy = _judge_words(last)
    return secrecy if inherited is Secrecy.AMBIGUOUS else max(secrecy, inherited)


def _judge_words(name: str) -> Secrecy:
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1] in _DROPPED:
        words.pop()
    if not words or words[-1] in _ABOUT or words[0] in _ASKED:
        return Secrecy.NONE
    if any(map(_CERTAIN.fullmatch, words)) or not _WORD_PAIRS.isdisjoint(itertools.pairwise(words)):
        return Secrecy.CERTAIN
    if any(map(_LIKELY.fullmatch, words)):
        return Secrecy.LIKELY
    return _judge_noun(words[-1], words[-2] if len(words) > 1 else "", is_variable=name.isupper())


def _judge_noun(noun: str, before: str, *, is_variable: bool) -> Secrecy:
    match noun:
        case "token" | "key":
            return _judge_unless(before, _NO_TOKEN if noun == "token" else _NO_KEY)
        case "tokens" | "keys":
            if not before:
                return Secrecy.AMBIGUOUS if noun == "tokens" else Secrecy.NONE
            ordinary = _NO_TOKEN if noun == "tokens" else _NO_KEY
            is_secret = before in _OF_ACCOUNTS or (is_variable and before not in ordinary)
            return Secrecy.LIKELY if is_secret else Secrecy.NONE
        case "pass":
            return _judge_unless(before, _NO_PASS)
        case "pat" | "pats":
            return _judge_unless(before, _NO_PATTERN)
        case "bearer" | "cookie" | "cookies" | "pw":
            return Secrecy.LIKELY
        case "auth" | "pwd" | "sas" | "sig":
            return _judge_unless(before, frozenset())
    return Secrecy.NONE


def _judge_unless(before: str, ordinary: frozenset[str]) -> Secrecy:
    if before in ordinary:
        return Secrecy.NONE
    return Secrecy.LIKELY if before else Secrecy.AMBIGUOUS


HIDDEN = "<hidden>"
"""Replaces a secret in a record."""

# Placeholders: a variable, or a field that is filled in later.
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
    """Return whether a value cannot be a secret: empty, `true`, a variable; also a path, unless the name is certain."""
    if value.lower() in _NO_VALUES:
        return True
    remainder = _SCHEME.sub("", _REFERENCE.sub("", value), count=1)
    if remainder != value and not re.search(r"[A-Za-z0-9]", remainder):
        return True
    if secrecy is Secrecy.CERTAIN:
        return False
    return value in ("NAME", "VALUE") or value.lower() in _METHODS or bool(_NUMBER.fullmatch(value)) or is_path(value)


def is_path(value: str) -> bool:
    """Return whether a value is a file path, not a base64 key that begins with a slash."""
    if not _PATH.fullmatch(value):
        return False
    return not any(
        len(part) > 24 and re.search(r"\d", part) and not part.islower() for part in re.split(r"[/\\]", value)
    )


def looks_secret(value: str) -> bool:
    """Return whether a word looks like a secret rather than like a word of a language or program."""
    value = _REFERENCE.sub("", value)
    return len(value) >= 6 and not re.search(r"\s", value) and not _PLAIN_WORD.fullmatch(value)


def is_reference(value: str) -> bool:
    """Return whether a value only refers to another: `$HF_TOKEN`, `${USER}:${TOKEN}`."""
    return not re.search(r"[A-Za-z0-9]", _REFERENCE.sub("", value))


def hide(value: str) -> str:
    """Return the replacement of a secret, with the same number of lines."""
    return HIDDEN + "\n" * value.count("\n")


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
_NAMED = (
    (":", _PGPASS),
    ("</", _ELEMENT),
    ("%3", _ENCODED),
    ("password", _NETRC),
    ("", _SET),
    ("alue", _LABELLED),
)

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
    for needle, pattern in (*_PLACES, ("/t/", _CONDA_TOKEN), ("@", _WITHOUT_SCHEME), *commands, *_NAMED):
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
