"""The Hugging Face Hub: models that are named by their ids."""
