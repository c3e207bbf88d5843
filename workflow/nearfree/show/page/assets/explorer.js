// The explorer: choose a setting, and see T(N), the boundary, its limiter, and the option.

const KINDS = {
  observed: { fields: CHOICES, table: 'boundaries' },
  predicted: { fields: [...CONDITION, 'baseline', 'epsilon'], table: 'lookup' },
};
const choices = document.getElementById('choices');
const answer = document.getElementById('answered');
let site = null;
let query = { kind: 'observed' };
let linkParams = new Map();
let refreshes = 0;

// Apply the parameters of a link, and show the result.
async function explore(params) {
  site ??= await read('site');
  linkParams = new Map(params);
  const kind = params.get('kind');
  if (Object.hasOwn(KINDS, kind ?? '')) {
    query = { kind };
    linkParams.delete('kind');
  }
  for (const name of KINDS[query.kind].fields) if (params.has(name)) query[name] = params.get(name);
  await refresh();
}

// The parameters of a link to this view.
function view() {
  return Object.fromEntries(Object.entries(query).filter(([, value]) => value !== null));
}

async function refresh() {
  refreshes += 1;
  const thisTurn = refreshes;
  const { kind } = query;
  const source = await table(KINDS[kind].table);
  const places = narrow(source, kind);
  const parts = places.length
    ? await (kind === 'predicted'
        ? predictedParts(source, places)
        : observedParts(source, places[0]))
    : [make('p', null, 'This page has no such rows.')];
  if (thisTurn !== refreshes) return;
  answer.replaceChildren(...[missingBanner(), ...parts].filter(Boolean));
  answer.dataset.shown = kind;
  document.documentElement.dataset.explored = String(refreshes);
}

// A banner with each choice of the link that this page does not have, and what it shows instead.
function missingBanner() {
  const missing = [...linkParams].filter(
    ([name, value]) => !Object.hasOwn(query, name) || (query[name] ?? '') !== value,
  );
  if (!missing.length) return null;
  const offered = [...choices.querySelectorAll('select')].map((select) => select.name);
  const told = missing.map(([name, value]) =>
    Object.hasOwn(query, name)
      ? `no rows of ${name} = ${value}: ${name} = ${query[name] ?? 'none'} is shown instead`
      : `no choice is called ${name}: those here are kind, ${offered.join(', ')}`,
  );
  return make(
    'p',
    { class: 'banner' },
    `The address of this page asks for what is not here: ${told.join('; ')}.`,
  );
}

// Filter the rows field by field, offer the remaining values of each, and return the rows left.
function narrow(source, kind) {
  const boxes = [];
  let places = [...Array(source.length).keys()];
  if (kind === 'observed') places = places.filter((place) => source.at('newest', place));
  for (const name of KINDS[kind].fields) {
    const options = [...new Set(places.map((place) => source.at(name, place)))].sort(inOrder);
    if (!options.length) break;
    const text = (value) => (value === null ? '' : String(value));
    const fallback = [site.epsilon, 'dense_ffn'].find((value) => options.includes(value)) ?? options[0];
    const linkedValue = options.find((value) => text(value) === query[name]);
    const chosen = linkedValue === undefined ? fallback : linkedValue;
    query[name] = chosen === null ? null : text(chosen);
    places = places.filter((place) => source.at(name, place) === chosen);
    if (options.length > 1) boxes.push(box(source, name, options, chosen));
  }
  const focused = document.activeElement && document.activeElement.name;
  choices.replaceChildren(...boxes);
  const again = focused && choices.querySelector(`select[name="${CSS.escape(focused)}"]`);
  if (again) again.focus();
  document.querySelectorAll('input[name="kind"]').forEach((input) => {
    input.checked = input.value === kind;
  });
  return places;
}

function inOrder(left, right) {
  if (typeof left === 'number' && typeof right === 'number') return left - right;
  return String(left ?? '').localeCompare(String(right ?? ''), 'en');
}

const LABELS = {
  deployment: 'entry of deployments.yaml',
  attention: 'attention backend',
  epsilon: 'tolerance',
  baseline: 'baseline N',
  stream: 'study',
  setting_key: 'setting',
};

function box(source, name, options, chosen) {
  const text = (value) =>
    value === null ? 'none' : name === 'epsilon' ? percent(value) : valueText(value);
  const select = make(
    'select',
    { name },
    options.map((value) => {
      const option = make('option', { value: value === null ? '' : String(value) }, text(value));
      option.selected = value === chosen;
      return option;
    }),
  );
  const label = FIELDS[name]?.label || LABELS[name] || nameAndUnit(name).words;
  return make('label', null, make('span', null, label), select);
}
