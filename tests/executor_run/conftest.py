"""A tokenizer for tests of data."""

from pathlib import Path

import pytest


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A word tokenizer: the 0, of 1, light 2, unknown 300."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    model = tokenizers.models.WordLevel({"the": 0, "of": 1, "light": 2, "?": 300}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    return tmp_path / "model"
