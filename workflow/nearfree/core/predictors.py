"""The names of what predicts N_max of a question; the command line reads them, too."""

LAWS = ("idle_compute", "principle", "principle_resolved")
"""The paper's laws, answered in `derive/laws/`."""
WORK_MODEL = "work_model"
"""The boundary of T(N) by the work model, answered in `derive/reference/`."""
PREDICTORS = (*LAWS, WORK_MODEL)
"""Those that answer any question, in the order of tables and pages."""
