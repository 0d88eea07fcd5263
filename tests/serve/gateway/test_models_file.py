"""Models files that cannot be are refused with a sentence, and no secret is shown."""

import pytest

from dovetail.serve.gateway.models_file import read_models
from dovetail.vocabulary import DovetailError

GOOD = '[models.a]\nurl = "http://user:hunter22@host/v1?key=hunter22"\nprice_in = 1\nprice_out = 2\n'


def test_a_model_shows_no_secret(tmp_path):
    (tmp_path / "m.toml").write_text(GOOD + 'key_variable = "KEY"\n')
    (model,) = read_models(tmp_path / "m.toml", {"KEY": "key-of-the-upstream"})
    assert (model.name, model.model, model.key) == ("a", "a", "key-of-the-upstream")
    assert "hunter22" not in repr(model)
    assert "key-of-the-upstream" not in repr(model)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 7", "it names none"),
        ("[models", "must be TOML"),
        ("[models.a]\nurl = 'http://host'", "must say its price_in, price_out"),
        (GOOD + "color = 'red'", "it says color, too"),
        (GOOD + "at_once = 'many'", "at_once of model 'a' must be int, got str"),
        (GOOD + "at_once = 0", "above 0"),
        (GOOD + "timeout = 'soon'", "timeout of model 'a'"),
        (GOOD + "key_variable = 'NOT_SET'", "in the variable NOT_SET, which is not set"),
        (GOOD.replace("models.a", "models.auto"), "no model may be called 'auto'"),
        (GOOD.replace("http://", "ftp://"), "must begin with http"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, text, message):
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(DovetailError, match=message) as raised:
        read_models(tmp_path / "m.toml", {})
    assert "hunter22" not in str(raised.value)
