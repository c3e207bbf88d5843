// Elements and words: whatever comes from data is put in as text, never as markup.

const LONG = 30;

// An element with attributes and children; a child that is no element is text.
function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined));
  return made;
}

// A link that opens the provenance of a row, an event or an entry of the config.
function opens(id, text, className) {
  return make(
    'a',
    { href: `#${new URLSearchParams({ row: id })}`, 'data-row': id, class: className },
    text,
  );
}

// A table of cells that are texts or elements; long texts may break anywhere.
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
    { class: `scroll ${className || ''}`, tabindex: '0' },
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

function folded(summary, ...children) {
  return make('details', null, make('summary', null, summary), ...children);
}

// A text as one word of a command line.
function quoted(text) {
  return /^[\w./:@][\w./:@=#-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// A unit that ends as another does comes before it.
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
function named(column) {
  const unit = Object.keys(UNITS).find((each) => `_${column}`.endsWith(`_${each}`));
  const words = unit && unit !== column ? column.slice(0, -unit.length - 1) : column;
  return { words: words.replaceAll('_', ' ').replace(/\bn\b/, 'N'), unit: unit ? UNITS[unit] : '' };
}

// A value as it is read: numbers to six digits, the rest as it is.
function shown(value) {
  if (typeof value === 'number')
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  return Array.isArray(value) ? value.map(shown).join(', ') : String(value);
}

function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

// A boundary as it was measured or published: at least that N where the grid ends there.
function reached(row) {
  return `${row.next_n === null ? '≥ ' : ''}${row.n_max}`;
}

// A boundary as `nearfree predict` prints it, below its baseline, too.
function amount(row, name = 'n_max') {
  const said = bare(row, name);
  return name === 'n_max' && row.n_max !== null && row.n_max < row.baseline
    ? `${said} < ${row.baseline}`
    : said;
}

// From 10 on whole positions, rounded down: T of one more is beyond the tolerance.
function bare(row, name) {
  if (row.unbounded && name === 'n_max') return 'unbounded';
  const value = row[name];
  if (value === null || value === undefined) return row.refusal ? 'refused' : '-';
  if (row.censored) return `≥ ${shown(value)}`;
  const whole = Math.floor(value * (1 + ROUNDING));
  return String(whole >= 10 ? whole : Number(Math.min(value, BELOW_10).toPrecision(3)));
}

function interval(low, high) {
  if (low === null || low === undefined) return '';
  return low === high ? shown(low) : `${shown(low)} to ${shown(high)}`;
}

// An interval of a prediction: at least that N where the N that are looked at end there.
function foretold({ low, high }) {
  if (low === null || low === undefined) return '';
  const [from, to] = [low, high].map((n) => `${n === LARGEST ? '≥ ' : ''}${shown(n)}`);
  return from === to ? from : `${from} to ${to}`;
}

const IN_WORDS = {
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
  rank_bytes: 'on the GPU with most',
  gpus_needed: 'GPUs needed',
};

// What a column is called where its name does not say so: the paper's letter of a field, or words.
function inWords(name) {
  return FIELDS[name]?.letter || IN_WORDS[name];
}

// What a row speaks of: the fields of its key that tell something.
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
  const told = axes.some((name) => source.key.includes(name));
  if (!told && axes.some((name) => source.at(name, place) !== null)) {
    for (const name of ['backend', ...axes]) {
      const value = source.at(name, place);
      if (value !== null && value !== FIELDS[name].quiet) parts.push(withName(name, value));
    }
  }
  return parts.join(', ');
}

// A field's value behind its name; a text whose name has no words says enough alone.
function withName(name, value) {
  const said = name === 'epsilon' ? percent(value) : shown(value);
  return typeof value === 'string' && !inWords(name)
    ? said
    : `${inWords(name) || named(name).words} ${said}`;
}
