// The state of the page is its address: the hash has the view and the open row.

// The parameters of the hash; none for the anchor of an element.
function hashParams() {
  const text = location.hash.slice(1);
  return new URLSearchParams(document.getElementById(text) ? '' : text);
}

function go(params, { replace = false } = {}) {
  const hash = `${location.pathname}${location.search}#${params}`;
  history[replace ? 'replaceState' : 'pushState'](null, '', hash);
  sync();
}

let shownKey = '';

// Show the state of the address, after a click, a step back, or a change by hand.
async function sync() {
  const params = hashParams();
  const row = params.get('row');
  params.delete('row');
  const key = params.toString();
  const changed = key !== shownKey && key !== '';
  shownKey = key || shownKey;
  await Promise.all([changed ? explore(params) : null, showPanel(row)]);
}

function openRow(id) {
  const params = hashParams();
  if (id === null) params.delete('row');
  else params.set('row', id);
  go(params);
}

document.addEventListener('click', (event) => {
  const link = event.target.closest('[data-row]');
  if (!link || link === panel || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openRow(link.dataset.row);
});
document.getElementById('panel-close').addEventListener('click', () => openRow(null));
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !panel.hidden) openRow(null);
});
window.addEventListener('popstate', sync);

document.getElementById('explorer').addEventListener('change', async (event) => {
  const { name, value } = event.target;
  query = name === 'kind' ? { kind: value } : { ...query, [name]: value };
  linkParams.clear();
  await refresh();
  const params = new URLSearchParams(view());
  shownKey = params.toString();
  go(params, { replace: true });
});

let resized = 0;
window.addEventListener('resize', () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() =>
    answer.querySelectorAll('.plot').forEach((element) => element.redraw()),
  );
});

// A drawing is inserted when the reader scrolls near; all are inflated when the browser is idle.
const drawings = new Map();

function drawing(name) {
  if (!drawings.has(name))
    drawings.set(name, {
      text: null,
      ready: inflate(name).then((text) => {
        drawings.get(name).text = text;
      }),
    });
  return drawings.get(name);
}

function insertDrawing(holder) {
  const { text } = drawing(holder.dataset.svg);
  if (text === null || holder.dataset.put) return;
  holder.dataset.put = 'yes';
  const picture = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement;
  picture.setAttribute('role', 'img');
  picture.setAttribute('aria-label', holder.dataset.caption);
  holder.replaceChildren(document.adoptNode(picture));
}

const nearby = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      nearby.unobserve(target);
      drawing(target.dataset.svg).ready.then(() => insertDrawing(target));
    }
  },
  { rootMargin: '600px' },
);
const holders = [...document.querySelectorAll('[data-svg]')];
holders.forEach((element) => nearby.observe(element));

const whenIdle = window.requestIdleCallback || ((call) => setTimeout(call, 200));
whenIdle(async () => {
  for (const holder of holders) await drawing(holder.dataset.svg).ready;
  document.documentElement.dataset.figures = 'ready';
});

let folds = [];
window.addEventListener('beforeprint', () => {
  holders.forEach(insertDrawing);
  folds = [...document.querySelectorAll('main details:not([open])')];
  folds.forEach((element) => {
    element.open = true;
  });
});
window.addEventListener('afterprint', () =>
  folds.forEach((element) => {
    element.open = false;
  }),
);

document.documentElement.dataset.script = 'on';
const initialParams = hashParams();
const initialRow = initialParams.get('row');
initialParams.delete('row');
shownKey = initialParams.toString();
explore(initialParams)
  .then(() => {
    const asked = shownKey ? document.getElementById('explorer') : document.querySelector(':target');
    asked?.scrollIntoView({ behavior: 'instant' });
    document.documentElement.dataset.readyMs = performance.now().toFixed(0);
    return showPanel(initialRow);
  })
  .catch((error) =>
    answer.replaceChildren(
      make(
        'p',
        { class: 'banner' },
        `This browser cannot read the page's data: ${error}. Each number's row can be printed with nearfree audit.`,
      ),
    ),
  );
