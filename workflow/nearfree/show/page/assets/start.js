// From the address to what is shown: the view and the open row are both in the hash.

// What the hash asks for; a plain anchor asks for nothing.
function inHash() {
  const text = location.hash.slice(1);
  return new URLSearchParams(text.includes('=') ? text : '');
}

function go(params, { replace = false } = {}) {
  const hash = `${location.pathname}${location.search}#${params}`;
  history[replace ? 'replaceState' : 'pushState'](null, '', hash);
  sync();
}

let seen = '';

// Show what the address says, after a click, a step back, or a change by hand.
async function sync() {
  const params = inHash();
  const row = params.get('row');
  params.delete('row');
  const key = params.toString();
  const changed = key !== seen && key !== '';
  seen = key || seen;
  await Promise.all([changed ? explore(params) : null, showPanel(row)]);
}

function openRow(id) {
  const params = inHash();
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
  asked = name === 'kind' ? { kind: value } : { ...asked, [name]: value };
  linked.clear();
  await refresh();
  const params = new URLSearchParams(view());
  seen = params.toString();
  go(params, { replace: true });
});

let resized = 0;
window.addEventListener('resize', () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() =>
    answer.querySelectorAll('.plot').forEach((each) => each.redraw()),
  );
});

// Drawings are put in when somebody scrolls near; all of them are inflated when nothing else is to do.
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

function putIn(holder) {
  const { text } = drawing(holder.dataset.svg);
  if (text === null || holder.dataset.put) return;
  holder.dataset.put = 'yes';
  const picture = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement;
  picture.setAttribute('role', 'img');
  picture.setAttribute('aria-label', holder.dataset.caption);
  holder.replaceChildren(document.adoptNode(picture));
}

const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      drawing(target.dataset.svg).ready.then(() => putIn(target));
    }
  },
  { rootMargin: '600px' },
);
const holders = [...document.querySelectorAll('[data-svg]')];
holders.forEach((each) => near.observe(each));

const whenIdle = window.requestIdleCallback || ((call) => setTimeout(call, 200));
whenIdle(async () => {
  for (const holder of holders) await drawing(holder.dataset.svg).ready;
  document.documentElement.dataset.figures = 'ready';
});

let folds = [];
window.addEventListener('beforeprint', () => {
  holders.forEach(putIn);
  folds = [...document.querySelectorAll('main details:not([open])')];
  folds.forEach((each) => {
    each.open = true;
  });
});
window.addEventListener('afterprint', () =>
  folds.forEach((each) => {
    each.open = false;
  }),
);

document.documentElement.dataset.script = 'on';
const begun = inHash();
const begunRow = begun.get('row');
begun.delete('row');
seen = begun.toString();
explore(begun)
  .then(() => {
    document.querySelector(':target')?.scrollIntoView({ behavior: 'instant' });
    document.documentElement.dataset.readyMs = performance.now().toFixed(0);
    return showPanel(begunRow);
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
