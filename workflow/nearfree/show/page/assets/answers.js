// What every answer of the explorer has: where it comes from, its number, its drawing.

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

function headline(id, text, about, origin) {
  return make(
    'p',
    { class: 'headline' },
    make('span', { class: 'name' }, 'N_max'),
    opens(id, text, 'big'),
    make('span', null, about),
    tag(origin),
  );
}

function limits(row) {
  return row.limiting_module
    ? `${row.limiting_module}: ${row.limiting_term}`
    : row.censored
      ? 'no limit up to there'
      : '';
}

function way(row) {
  return [row.predictor, row.basis].filter(Boolean).join(', ').replaceAll('_', ' ');
}

function plotted(options) {
  const holder = make('div', { class: 'plot' });
  const draw = () =>
    holder.replaceChildren(
      chart({
        ...options,
        width: Math.max(290, Math.min(780, answer.clientWidth)),
        label: `T(N) / T(${options.baseline}) over N; the table below has the same numbers`,
      }),
    );
  draw();
  holder.redraw = draw;
  return holder;
}
