"""x."""
from nearfree.sources.flash_attn_4_rules import readings
PACKAGE = "flash-attn-4"
WANTED = r"(flash_attn/cute/)?(interface|flash_fwd(_sm90|_sm100)?)\.py"
