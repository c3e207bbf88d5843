"""The paper's laws, asked of frames."""
