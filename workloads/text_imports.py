"""Import all modules that `train_text` imports. A fork server imports this module (docs/warm_start.md)."""

from workloads.text import models, text_data
from workloads.training import recipes, run

models.load()

__all__ = ["models", "recipes", "run", "text_data"]
