"""The paper's questions, findings and claims, each checked on what the log holds."""
