// The provenance panel: from a number to its inputs, down to raw samples and the run.

const MOST_ITEMS = 24;
const panel = document.getElementById('panel');
const panelBody = document.getElementById('panel-body');
const panelTrail = document.getElementById('panel-trail');
let trail = [];
let opener = null;

// Show a row, an event or an entry of the config; null closes the panel.
async function showPanel(id) {
  if (id === null) {
    closePanel();
    return;
  }
  const position = trail.indexOf(id);
  trail = position < 0 ? [...trail, id] : trail.slice(0, position + 1);
  if (panel.hidden) opener = document.activeElement;
  panel.hidden = false;
  document.documentElement.dataset.panel = 'open';
  const body = await bodyOf(id).catch((error) => [make('p', { class: 'banner' }, String(error))]);
  if (trail.at(-1) !== id) return;
  panelTrail.replaceChildren(...crumbs());
  panelBody.replaceChildren(...body);
  panel.dataset.row = id;
  panelBody.scrollTop = 0;
  document.getElementById('panel-title').focus({ preventScroll: true });
}

function closePanel() {
  if (panel.hidden) return;
  panel.hidden = true;
  delete panel.dataset.row;
  delete document.documentElement.dataset.panel;
  trail = [];
  if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  opener = null;
}

function crumbs() {
  const short = (id) => (id.includes('#') ? `line ${parse(id).line}` : id.split(/[:@]/)[0]);
  const links = trail.slice(0, -1).map((id) => make('li', null, provenanceLink(id, short(id))));
  return links.length
    ? [make('ol', { class: 'crumbs', 'aria-label': 'Opened rows' }, links)]
    : [];
}

function bodyOf(id) {
  const { kind } = parse(id);
  if (kind === 'event') return eventBody(id);
  return kind === 'config' ? configBody(id) : rowBody(id);
}

function heading(title, id) {
  return [
    make('h2', { id: 'panel-title', tabindex: '-1' }, make('bdi', null, title)),
    make('p', { class: 'id' }, make('code', null, id)),
  ];
}

function part(title, ...children) {
  return make('section', null, make('h3', null, title), ...children);
}

function fields(pairs) {
  return make(
    'dl',
    { class: 'fields' },
    pairs.map(([name, value, meaning]) => [
      make('dt', null, name),
      make('dd', null, value, meaning ? make('small', null, meaning) : null),
    ]),
  );
}

function recompute(id) {
  return part(
    'Recompute it',
    make('code', { class: 'command' }, `nearfree audit ${shellQuoted(id)}`),
    make('p', { class: 'note' }, 'from the log alone; it also prints this provenance'),
  );
}

async function rowBody(id) {
  const { name, digest } = parse(id);
  const source = await table(name);
  const place = source ? source.places.get(digest) : undefined;
  if (place === undefined) {
    return heading('Not in this page', id);
  }
  const formula = source.formulaOf(place);
  return [
    ...heading(subject(source, place), id),
    make('p', { class: 'note' }, source.about),
    values(source, place),
    part(
      'Formula',
      [formula, source.beside].filter(Boolean).map(({ text, paper, code }) => [
        make('p', { class: 'formula' }, text),
        make(
          'p',
          { class: 'note' },
          paper ? `paper: ${paper}; ` : '',
          'code: ',
          make('code', null, code),
        ),
      ]),
    ),
    await ruleSection(source, place),
    ...(await sourceSections(source, place)),
    recompute(id),
  ].filter(Boolean);
}

// Columns that identify a row, besides its key and a setting's fields.
const IDENTITY = ['setting_key', 'plan8', 'deployment', 'newest'];

// The columns of a row: first its values, then those that identify it.
function values(source, place) {
  const pairs = source.names
    .map((name) => [name, source.at(name, place)])
    .filter(([, value]) => value !== null && value !== '');
  const identity = new Set([...source.key, ...Object.keys(FIELDS), ...IDENTITY]);
  const line = ([name, value]) => {
    const { words, unit } = nameAndUnit(name);
    const text = /^epsilon|_epsilon$/.test(name) ? percent(value) : `${valueText(value)}${unit ? ` ${unit}` : ''}`;
    return [knownName(name) || words, text, source.meanings[name]];
  };
  return [
    part('Values', fields(pairs.filter(([name]) => !identity.has(name)).map(line))),
    make(
      'details',
      null,
      make('summary', null, 'Setting'),
      fields(pairs.filter(([name]) => identity.has(name)).map(line)),
    ),
  ].reduce((container, section) => (container.append(section), container), make('div'));
}
