"""The Hugging Face Hub: models that a question names by their ids."""
