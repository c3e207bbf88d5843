"""Every claim that is checked, in the order of the page."""

from nearfree.derive.claims.module_claims import MODULE_CLAIMS
from nearfree.derive.claims.other_claims import (
    MODEL_CLAIMS,
    PUBLIC_CLAIMS,
    TOLERANCE_CLAIMS,
)
from nearfree.derive.claims.questions import FINDINGS, QUESTIONS

EVERY = (*QUESTIONS, *FINDINGS, *MODULE_CLAIMS, *TOLERANCE_CLAIMS, *MODEL_CLAIMS, *PUBLIC_CLAIMS)
