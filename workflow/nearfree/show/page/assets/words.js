// Elements and texts. Data are always inserted as text, never as markup.

const LONG = 30;

// An element with attributes and children; a child that is not an element becomes text.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((item) => item !== null && item !== undefined));
  return element;
}

// A link that opens the provenance of a row, an event or an entry of the config.
function provenanceLink(id, text, className) {
  return make(
    'a',
    { href: `#${new URLSearchParams({ row: id })}`, 'data-row': id, class: className },
    text,
  );
}

// A table of texts or elements; long texts may break anywhere.
function grid(head, rows, className) {
  const long = (cell) => (typeof cell === 'string' && cell.length > LONG ? 'long' : null);
  const line = (cells, tag) =>
    make(
      'tr',
      null,
      cells.map((cell) => make(tag, { class: long(cell) }, cell ?? '-')),
    );
  return make(
    'div',
    { class: `scroll ${className || ''}`, tabindex: '0', role: 'group', 'aria-label': 'Table' },
    make(
      'table',
      null,
      make('thead', null, line(head, 'th')),
      make(
        'tbody',
        null,
        rows.map((cells) => line(cells, 'td')),
      ),
    ),
  );
}

function foldedPart(summary, ...children) {
  return make('details', null, make('summary', null, summary), ...children);
}

// A text as one word of a command line.
function shellQuoted(text) {
  return /^[\w./:@][\w./:@=#-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// Units by the suffix of a column; a suffix comes before a shorter one that it ends with.
const UNITS = {
  tokens_s: 'tokens/s',
  us: 'µs',
  gb_s: 'GB/s',
  tflops: 'TFLOP/s',
  flop_per_byte: 'FLOP/byte',
  mib: 'MiB',
  gb: 'GB',
  bytes: 'bytes',
  mhz: 'MHz',
  s: 's',
};

// A column's name in words, and its unit.
function nameAndUnit(column) {
  const unit = Object.keys(UNITS).find((item) => `_${column}`.endsWith(`_${item}`));
  const words = unit && unit !== column ? column.slice(0, -unit.length - 1) : column;
  return { words: words.replaceAll('_', ' ').replace(/\bn\b/, 'N'), unit: unit ? UNITS[unit] : '' };
}

// A value as text; numbers have six digits.
function valueText(value) {
  if (typeof value === 'number')
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  return Array.isArray(value) ? value.map(valueText).join(', ') : String(value);
}

// A latency in µs: four digits, or whole µs; the row behind it has them all.
function latencyText(value) {
  return value < 1000 ? value.toPrecision(4) : value.toFixed(0);
}

function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

// A measured or published boundary, with ≥ where the grid ends there.
function boundaryText(row) {
  return `${row.next_n === null ? '≥ ' : ''}${row.n_max}`;
}

// A boundary as `nearfree predict` prints it, below its baseline, too.
function amount(row, name = 'n_max') {
  const text = roundedAmount(row, name);
  return name === 'n_max' && row.n_max !== null && row.n_max < row.baseline
    ? `${text} < ${row.baseline}`
    : text;
}

// A boundary, from 10 on rounded down to whole positions: T of one more is beyond the tolerance.
function roundedAmount(row, name) {
  if (row.unbounded && name === 'n_max') return 'unbounded';
  const value = row[name];
  if (value === null || value === undefined) return row.refusal ? 'refused' : '-';
  if (row.censored) return `≥ ${valueText(value)}`;
  const whole = Math.floor(value * (1 + ROUNDING));
  return String(whole >= 10 ? whole : Number(Math.min(value, BELOW_10).toPrecision(3)));
}

function interval(low, high) {
  if (low === null || low === undefined) return '';
  return low === high ? valueText(low) : `${valueText(low)} to ${valueText(high)}`;
}

// The interval of a prediction, with ≥ for an end at the largest N.
function predictionInterval({ low, high }) {
  if (low === null || low === undefined) return '';
  const [from, to] = [low, high].map((n) => `${n === LARGEST ? '≥ ' : ''}${valueText(n)}`);
  return from === to ? from : `${from} to ${to}`;
}

const COLUMN_NAMES = {
  n: 'N',
  epsilon: 'tolerance',
  n_max: 'N_max',
  balance_flop_per_byte: 'rho',
  peak_tflops: 'phi',
  bandwidth_gb_s: 'beta',
  within_1_31: 'within a factor of 1.31',
  within_2: 'within a factor of 2',
  baseline_over_min: 'T(baseline) / min T',
  ratio: 'T(N) / T(baseline)',
  latency_us: 'T(N)',
  latency_low_us: 'T(N), low end',
  latency_high_us: 'T(N), high end',
  ratio_low: 'ratio, low end',
  ratio_high: 'ratio, high end',
  next_n: 'the next N of the grid',
  n_low: 'N_max, low end',
  n_high: 'N_max, high end',
  n_max_from_1: 'N_max from N = 1',
  n_low_from_1: 'N_max from N = 1, low end',
  n_high_from_1: 'N_max from N = 1, high end',
  n_max_low: 'N_max at the smallest tolerance',
  n_max_high: 'N_max at the largest tolerance',
  n_max_extended: 'N_max with all terms',
  log2_error: 'error, doublings',
  tokens_s: 'speed',
  tokens_s_low: 'speed, low end, tokens/s',
  tokens_s_high: 'speed, high end, tokens/s',
  load_1m: 'load over a minute',
  sha256: 'SHA-256',
  plan8: 'plan',
  kv_bytes: 'cache',
  engine_bytes: 'allowance for the engine',
  rank_bytes: 'on the fullest GPU',
  gpus_needed: 'GPUs needed',
};

// The name of a column where it differs from its identifier: the letter of a field, or words.
function knownName(name) {
  return FIELDS[name]?.letter || COLUMN_NAMES[name];
}

// A short description of a row: the fields of its key that have a value.
function subject(source, place) {
  const parts = [];
  for (const name of ['model', 'module', ...source.key]) {
    const value = source.at(name, place);
    if (value === null || value === '' || ['setting_key', 'plan8', 'deployment'].includes(name))
      continue;
    const text = withName(name, value);
    if (!parts.includes(text)) parts.push(text);
  }
  const axes = Object.keys(FIELDS).filter((name) => FIELDS[name].axis);
  const hasAxis = axes.some((name) => source.key.includes(name));
  if (!hasAxis && axes.some((name) => source.at(name, place) !== null)) {
    for (const name of ['backend', ...axes]) {
      const value = source.at(name, place);
      if (value !== null && value !== FIELDS[name].quiet) parts.push(withName(name, value));
    }
  }
  return parts.join(', ');
}

// A field's name and value; a text value without a known name stands alone.
function withName(name, value) {
  const text = name === 'epsilon' ? percent(value) : valueText(value);
  return typeof value === 'string' && !knownName(name)
    ? text
    : `${knownName(name) || nameAndUnit(name).words} ${text}`;
}
