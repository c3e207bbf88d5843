"""One look for all figures: colours that colour-blind readers can tell apart, and plain axes."""

import altair as alt

MEASURED, PUBLISHED, THEORY, BAND = "#0072b2", "#d55e00", "#555555", "#009e73"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
PANEL = {"width": 260, "height": 200}


def dressed(chart: alt.FacetChart, title: str, subtitle: str) -> alt.FacetChart:
    """Return a chart with its title and the project's look."""
    titled = chart.properties(
        title=alt.TitleParams(title, subtitle=subtitle, anchor="start", offset=12)
    )
    drawn: alt.FacetChart = (
        titled.configure(font="sans-serif", background="white", padding=12)
        .configure_axis(grid=True, gridColor="#e6e6e6", labelFontSize=11, titleFontSize=12)
        .configure_header(labelFontSize=12, titleFontSize=12)
        .configure_legend(labelFontSize=11, titleFontSize=11, labelLimit=320)
        .configure_view(stroke="#cccccc")
        .configure_title(fontSize=15, subtitleFontSize=12, subtitleColor="#555555")
    )
    return drawn
