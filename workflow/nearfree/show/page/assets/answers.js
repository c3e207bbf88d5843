// Parts of every answer of the explorer: origin, headline and drawing.

function tag(origin) {
  const words = {
    measured: 'measured',
    published: 'published, not measured',
    imported: 'imported, not measured',
    simulated: 'simulated, not measured',
    predicted: 'predicted, not measured',
  };
  return make('span', { class: `tag ${origin}` }, words[origin] || origin);
}

function headline(id, text, about, origin, className = 'big') {
  return make(
    'p',
    { class: 'headline' },
    make('span', { class: 'name' }, 'N_max'),
    provenanceLink(id, text, className),
    make('span', null, about),
    tag(origin),
  );
}

function limitText(row) {
  return row.limiting_module
    ? `${row.limiting_module}: ${row.limiting_term}`
    : row.censored
      ? 'no limit up to there'
      : '';
}

function predictorName(row) {
  return [row.predictor, row.basis].filter(Boolean).join(', ').replaceAll('_', ' ');
}

function plotElement(options) {
  const container = make('div', { class: 'plot' });
  const draw = () =>
    container.replaceChildren(
      chart({
        ...options,
        width: Math.max(290, Math.min(780, answer.clientWidth)),
        label: `T(N) / T(${options.baseline}) over N; the table below has the same numbers`,
      }),
    );
  draw();
  container.redraw = draw;
  return container;
}
