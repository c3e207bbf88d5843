// T(N) as a small drawing: points over log N, the tolerance band, and the boundary.

const SVG = 'http://www.w3.org/2000/svg';
const HIGHEST = 3;
const MARGIN = { left: 46, right: 14, top: 14, bottom: 40 };

function svgElement(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A drawing of T(N) / T(baseline).
//   points: {n, ratio, low, high, id}, rising in N
//   boundary: {n, text, low, high}: N_max as a number and as text, its interval or null
function chart({ points, epsilon, baseline, boundary, width, label }) {
  const height = Math.round(Math.min(340, Math.max(240, width * 0.45)));
  const first = points[0].n;
  const last = Math.max(points.at(-1).n, 2 * first, boundary.n || 0);
  const highest = Math.min(
    HIGHEST,
    Math.max(1.5, ...points.map((point) => 1.08 * (point.high ?? point.ratio))),
  );
  const lowest = Math.min(0.9, ...points.map((point) => 0.95 * (point.low ?? point.ratio)));
  const x = (n) =>
    MARGIN.left +
    ((width - MARGIN.left - MARGIN.right) * Math.log2(n / first)) / Math.log2(last / first);
  const y = (ratio) =>
    height -
    MARGIN.bottom -
    ((height - MARGIN.top - MARGIN.bottom) * (ratio - lowest)) / (highest - lowest);
  const [left, right, top, bottom] = [x(first), x(last), y(highest), y(lowest)];
  const clampedY = (ratio) => Math.max(top - 6, y(ratio));

  const plot = svgElement('svg', {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: 'img',
    'aria-label': label,
    class: 'chart',
  });
  plot.append(
    svgElement('rect', {
      class: 'band',
      x: left,
      y: y(1 + epsilon),
      width: right - left,
      height: Math.max(0, bottom - y(1 + epsilon)),
    }),
  );
  for (const tick of ratioTicks(lowest, highest)) {
    plot.append(
      svgElement('line', { class: 'grid', x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      svgElement('text', { x: left - 8, y: y(tick) + 4, 'text-anchor': 'end' }, String(tick)),
    );
  }
  for (let n = 1; n <= last; n *= 2) {
    if (n < first) continue;
    plot.append(
      svgElement('line', { class: 'grid', x1: x(n), x2: x(n), y1: top, y2: bottom }),
      svgElement('text', { x: x(n), y: bottom + 16, 'text-anchor': 'middle' }, String(n)),
    );
  }
  if (boundary.low && boundary.high) {
    plot.append(
      svgElement('rect', {
        class: 'interval',
        x: x(Math.max(boundary.low, first)),
        y: top,
        width: Math.max(2, x(Math.min(boundary.high, last)) - x(Math.max(boundary.low, first))),
        height: bottom - top,
      }),
    );
  }
  if (boundary.n >= first) {
    const xBoundary = x(Math.min(boundary.n, last));
    const onLeft = xBoundary > (left + right) / 2;
    plot.append(
      svgElement('line', { class: 'boundary', x1: xBoundary, x2: xBoundary, y1: top, y2: bottom }),
      svgElement(
        'text',
        {
          class: 'boundary',
          x: xBoundary + (onLeft ? -6 : 6),
          y: top + 12,
          'text-anchor': onLeft ? 'end' : 'start',
        },
        `N_max ${boundary.text}`,
      ),
    );
  }
  plot.append(
    svgElement('text', { class: 'told', x: left + 6, y: y(1 + epsilon) - 5 }, `1 + ${percent(epsilon)}`),
  );
  plot.append(
    svgElement('polyline', {
      class: 'curve',
      points: visible(points, highest)
        .map((point) => `${x(point.n)},${clampedY(point.ratio)}`)
        .join(' '),
    }),
  );
  for (const point of points.filter(({ ratio }) => ratio <= highest)) {
    if (point.low)
      plot.append(
        svgElement('line', {
          class: 'error',
          x1: x(point.n),
          x2: x(point.n),
          y1: y(point.low),
          y2: clampedY(point.high),
        }),
      );
    const circle = svgElement('circle', {
      class: 'point',
      cx: x(point.n),
      cy: y(point.ratio),
      r: 4,
      'data-row': point.id,
    });
    circle.append(svgElement('title', {}, `N ${point.n}: ${valueText(point.ratio)}`));
    plot.append(circle);
  }
  plot.append(
    svgElement(
      'text',
      { class: 'axis', x: (left + right) / 2, y: height - 6, 'text-anchor': 'middle' },
      'N, positions in one forward',
    ),
    svgElement(
      'text',
      {
        class: 'axis',
        x: -(top + bottom) / 2,
        y: 12,
        transform: 'rotate(-90)',
        'text-anchor': 'middle',
      },
      `T(N) / T(${baseline})`,
    ),
  );
  return plot;
}

// The points up to the first one above the drawing, where the curve leaves it.
function visible(points, highest) {
  const beyond = points.findIndex(({ ratio }) => ratio > highest);
  return beyond < 0 ? points : points.slice(0, beyond + 1);
}

function ratioTicks(lowest, highest) {
  const step = highest - lowest > 1.2 ? 0.5 : 0.2;
  const ticks = [];
  for (let tick = Math.ceil(lowest / step) * step; tick <= highest; tick += step)
    ticks.push(Number(tick.toFixed(2)));
  return ticks;
}
