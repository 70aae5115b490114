"""What goes by the name of a secret, or has the form of one, is not published; everything else is."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import time

import pytest

from pipeline.base.system import override_values, secrecy, secrets
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.base.system.secrecy import Secrecy, secrecy_of
from pipeline.base.system.secret_texts import mask_diff, mask_source, mask_text
from tests.support import secret_forms
from tests.support.tables import rows


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "--api-key", "workload.environ.DB_PASSWORD", "apiKey", "SECRET_KEY_BASE", "TOKEN_2", "key"]
)
def test_names_of_secrets(name):
    assert secrecy_of(name) is not Secrecy.NONE


@pytest.mark.parametrize("name", [*secret_forms.INNOCENT, ""])
def test_names_that_only_look_like_it(name):
    for shown in (name, f"--{name}", f"workload.flags.{name}"):
        assert secrecy_of(shown) is Secrecy.NONE


@pytest.mark.parametrize(
    ("values", "hidden"),
    [
        ({"PWD": "/home/me"}, {"PWD": "/home/me"}),
        ({"PWD": "s3cret"}, {"PWD": "<hidden>"}),
        ({"SSL_KEY": "/etc/ssl/server.key"}, {"SSL_KEY": "/etc/ssl/server.key"}),
        ({"GOOGLE_APPLICATION_CREDENTIALS": "/a/b.json"}, {"GOOGLE_APPLICATION_CREDENTIALS": "/a/b.json"}),
        ({"AWS_SECRET_ACCESS_KEY": "/aB1" * 10}, {"AWS_SECRET_ACCESS_KEY": "<hidden>"}),
        ({"token": 5, "key": 0.5, "password": 5}, {"token": 5, "key": 0.5, "password": "<hidden>"}),
        ({"use_auth_token": True, "api_key": None, "pass": ""}, {"use_auth_token": True, "api_key": None, "pass": ""}),
        ({"token": "$HF_TOKEN", "key": "${oc.env:K}"}, {"token": "$HF_TOKEN", "key": "${oc.env:K}"}),
        ({"auth": "basic", "token": "auto"}, {"auth": "basic", "token": "auto"}),
        ({"credentials": {"user": "u", "x": "S"}}, {"credentials": {"user": "<hidden>", "x": "<hidden>"}}),
        ({"tokens": {"pad": "[PAD]"}}, {"tokens": {"pad": "[PAD]"}}),
        ({"env": [{"name": "HF_TOKEN", "value": "S"}]}, {"env": [{"name": "HF_TOKEN", "value": "<hidden>"}]}),
        ({"env": [{"name": "LR", "value": "S"}]}, {"env": [{"name": "LR", "value": "S"}]}),
        ({"API_KEYS": ["a", "b"], "sort_keys": ["a"]}, {"API_KEYS": "<hidden>", "sort_keys": ["a"]}),
    ],
)
def test_a_value_tells_whether_it_can_be_a_secret(values, hidden):
    assert secrets.mask(values) == hidden
    assert secrets.mask(hidden) == hidden


@pytest.mark.parametrize(("secret", "words"), [*secret_forms.word_forms()])
def test_a_secret_is_hidden_in_every_form(secret, words):
    masked = secrets.mask_words(words)
    line = " ".join(words)
    texts = [shlex.join(words), json.dumps({"command": line}), f"RuntimeError: cannot run {line}"]
    assert secret not in str([masked, secrets.mask(words)])
    assert len(masked) == len(words) and secrets.mask_words(masked) == masked
    assert secret not in str(list(map(secrets.mask_text, texts)))


@pytest.mark.parametrize(("secret", "name"), [*secret_forms.variables()])
def test_a_secret_is_hidden_by_the_name_of_its_variable(secret, name):
    lines = [
        f"export {name}={secret}",
        f"{name}: {secret}",
        f'{{"{name}": "{secret}"}}',
        f"os.environ['{name}'] = '{secret}'",
    ]
    assert secret not in str([secrets.mask({name: secret}), *map(secrets.mask_text, lines)])
    assert secret not in mask_source(lines[-1], "train.py")


@pytest.mark.parametrize("value", secret_forms.INNOCENT_VALUES)
def test_a_value_without_a_secret_stays_as_it_is(value):
    assert secrets.mask({"data": value}) == {"data": value}
    assert secrets.mask_words(["--data", value, f"workload.environ.DATA={value}"])[1:] == [
        value,
        f"workload.environ.DATA={value}",
    ]
    assert secrets.mask_text(value) == value


@rows("secrets", "command_lines")
def test_words_of_a_command_line(words, hidden):
    assert secrets.mask_words(words) == hidden
    assert secrets.mask_words(hidden) == hidden


@rows("secrets", "texts_without_secrets")
def test_a_text_loses_its_secrets_and_nothing_else(text, hidden):
    assert secrets.mask_text(text) == hidden
    assert secrets.mask_text(hidden) == hidden


def test_a_program_keeps_what_is_no_literal():
    code = """\
token = os.environ["HF_TOKEN"]
key = jax.random.PRNGKey(0)
login(token=token)
for key, value in d.items():
    if key == "state_dict": sorted(x, key=lambda k: k)
tokenizer(max_tokens=5, pad_token="[PAD]", eos_token="</s>")
parser.add_argument("--token", "-t", default=None, help="the token: a text")
def f(key: "Tensor", token: str = "x"): "key: the name of a key; password: that of the user"
headers = {"Authorization": f"Bearer {token}", "api_key": os.getenv("API_KEY", "")}
"""
    assert mask_source(code, "train.py") == code
    secrets_in, program = secret_forms.program()
    masked = mask_source(program, "train")
    assert not [secret for secret in secrets_in if secret in mask_source(program, "train.py")]
    assert not [secret for secret in secrets_in if secret in masked]


def test_a_diff_keeps_its_lines():
    diff = (
        "diff --git a/c.yaml b/c.yaml\n--- a/c.yaml\n+++ b/c.yaml\n@@ -1,2 +1,2 @@\n"
        "-password: two S\n+password: two S\n lr: 1\n\\ No newline at end of file\n"
    )
    assert mask_diff(diff) == diff.replace("two S", "<hidden>")


def test_a_secret_that_a_program_was_given_is_hidden_in_what_it_writes():
    known = secrets.collect_secrets(
        ["--password", "hunter2!", "--lr", "0.1"], {"HF_TOKEN": "abcdef", "PATH": "/usr/bin"}
    )
    assert known == {"hunter2!", "abcdef"}
    assert (
        secrets.mask_text("no user abcdef with hunter2! in /usr/bin", known)
        == "no user <hidden> with <hidden> in /usr/bin"
    )


def test_an_error_holds_no_secret():
    assert str(ConfigError("tracking.uri=http://u:S@h: HF_TOKEN=S is wrong")) == (
        "tracking.uri=http://<hidden>@h: HF_TOKEN=<hidden> is wrong"
    )


def test_every_rule_of_detect_secrets_is_looked_for():
    """A text that holds none of the marks is not searched, so each rule needs its mark."""
    samples = {
        "aws": ["ASIA" + "A1" * 8, f"aws_key = '{'aB1/' * 10}'"],
        "azure_storage_key": ["AccountKey=" + "a" * 88],
        "github_token": ["ghs_" + "aB1" * 12],
        "gitlab_token": [
            *(
                "glpat-" + "a" * 20,
                "GR1348941" + "a" * 20,
                "glcbt-" + "a" * 20,
                "glimt-" + "a" * 25,
                "glptt-" + "a" * 40,
            ),
            *("glagent-" + "a" * 50, "gloas-" + "a" * 64),
        ],
        "jwt": [secret_forms.KNOWN_BY_FORM[-1]],
        "mailchimp": ["a1" * 16 + "-us12"],
        "openai": ["sk-" + "a" * 20 + "T3BlbkFJ" + "a" * 20],
        "pypi_token": ["pypi-AgEIcHlwaS5vcmc" + "a" * 70, "pypi-AgENdGVzdC5weXBpLm9yZw" + "a" * 70],
        "sendgrid": ["SG." + "a" * 22 + "." + "a" * 43],
        "slack": ["xoxp-1-2-a", "https://hooks.slack.com/services/Ta/Bb/c"],
        "square_oauth": ["sq0csp-" + "a" * 43],
        "stripe": ["rk_live_" + "a" * 24],
        "telegram_token": ["12345678:" + "a" * 35],
        "twilio": ["AC" + "a1" * 16, "SK" + "a1" * 16],
    }
    by_module = dict(zip(secrecy._DETECTORS, secrecy._detectors(), strict=True))
    assert samples.keys() == by_module.keys()
    for module, detector in by_module.items():
        assert len(samples[module]) == len(detector.denylist)
        for sample, rule in zip(samples[module], detector.denylist, strict=True):
            assert rule.search(sample)
            assert re.search(r"\w{8}", secrecy.replace_tokens(sample, "")) is None


def test_detect_secrets_is_imported_only_for_what_may_be_a_token():
    program = "\n".join(
        (
            "import sys; from pipeline.base.system import secrets",
            f"secrets.mask_text({secret_forms.program()[1]!r}); secrets.mask({list(secret_forms.INNOCENT_VALUES)!r})",
            "assert 'detect_secrets' not in sys.modules",
            f"secrets.mask_text({secret_forms.KNOWN_BY_FORM[0]!r})",
            "assert 'detect_secrets' in sys.modules",
        )
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT_DIR, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "value",
    [
        ["--re", r"\d+ x\'", "l1\nl2", "é, [x]", "${a}", "", "null", "1", r"a\\", "it's"],
        [None, True, 1e-3, 7, float("inf"), [], {}],
        {"a b": {"c:d": [1]}, "e=,{}": "f", r"g\h": None},
    ],
)
def test_a_value_in_hydras_grammar_means_itself(value):
    assert override_values.parse(override_values.format_override(value)) == value


def test_a_configuration_tells_where_something_was_hidden():
    config = {
        "workload": {"environ": {"HF_TOKEN": "S", "A": "1"}, "args": ["--token", "S"], "flags": {"key": None, "lr": 1}},
        "mix": ["t.py --token S", {"command": "t.py", "environ": {"API_KEY": "S"}}],
        "pairs": [["HF_TOKEN", "S"], ["A", "1"]],
    }
    hidden = secrets.mask(config)
    assert "S'" not in str(hidden)
    assert hidden["workload"]["flags"] == {"key": None, "lr": 1}
    assert hidden["pairs"] == [["HF_TOKEN", "<hidden>"], ["A", "1"]]
    assert [*secrets.find_hidden_keys(hidden)] == ["workload.environ.HF_TOKEN", "workload.args", "mix", "pairs"]


S = "Zk9qX2vB7mT4wR1p"


@rows("secrets", "secrets_in_structures")
def test_no_structure_shows_its_secret(kind: str, form: str) -> None:
    file = "notes.txt" if kind == "text" else "train.py"
    text = form.replace("§", S)
    masked = mask_source(text, file)
    assert S not in masked and masked.count("\n") == text.count("\n")
    assert mask_source(masked, file) == masked
    lines = "".join(f"\n+{line}" for line in text.split("\n"))
    diff = f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1,2 +1,9 @@{lines}"
    assert S not in mask_diff(diff) and mask_diff(diff).count("\n") == diff.count("\n")
    if kind == "source":
        ast.parse(masked)
    elif form.startswith(('{"', "[{")):
        json.loads(masked)


@rows("secrets", "visible_values")
def test_other_values_of_structures_stay(kind: str, form: str) -> None:
    assert mask_source(form, "notes.txt" if kind == "text" else "train.py") == form


def test_a_value_that_was_changed_is_hidden_in_both_versions() -> None:
    diff = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,4 +1,4 @@\n"
        f"-PASSWORD = (\n+PASSWORD = SecretStr(\n     '{S}'\n )\n"
    )
    assert mask_diff(diff) == diff.replace(S, "<hidden>")


def test_lines_may_end_with_a_carriage_return() -> None:
    for end in ("\r", "\r\n"):
        code = f"a = 1{end}f(a,{end} token='{S}'){end}"
        assert mask_source(code, "a.py") == code.replace(S, "<hidden>")


def test_words_and_maps_are_masked_like_texts() -> None:
    assert secrets.mask_words(["docker", "login", "-u", "bob", "-p", "S"])[-1] == "<hidden>"
    assert secrets.mask_words(["curl", "h", "-su", "bob:S"]) == ["curl", "h", "-su", "<hidden>"]
    assert secrets.mask({"Name": "HF_TOKEN", "Value": "S"}) == {"Name": "HF_TOKEN", "Value": "<hidden>"}
    assert secrets.mask({"name": "LR", "value": "S"}) == {"name": "LR", "value": "S"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("a.py", "PASSWORD = ('Zk9qX2vB7mT4wR1p')\n"),
        ("a.py", "token = f('a', g(\n"),
        ("a.py", '"""token = (\n'),
        ("a.yaml", "- name: DB_PASSWORD\n  value: {{ a }}: b\n"),
        ("a.txt", 'INFO token: bad {"a": [1, 2]} password=x\n'),
        ("a.txt", "{[token: "),
    ],
)
def test_the_time_is_bounded_for_what_cannot_be_parsed(file: str, line: str) -> None:
    text = line * (100_000 // len(line))
    begin = time.process_time()
    masked = mask_source(text, file)
    assert masked.count("\n") == text.count("\n")
    assert time.process_time() - begin < 3  # on a busy machine; 0.3 s on a quiet one


def test_anchors_that_multiply_names_take_no_time() -> None:
    text = "a0: &a0 {p: x, token: s3cret-of-mine}\n"
    text += "".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}\n" for n in range(1, 20))
    begin = time.process_time()
    assert "s3cret-of-mine" not in mask_text(text)
    assert time.process_time() - begin < 2
