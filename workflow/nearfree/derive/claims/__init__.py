"""The paper's questions, findings and claims, each checked on the log's tables."""
