// The box beside the pointer, and what the terms of the page mean.

// Shows again what the box shows, after everything was drawn anew.
let again = null;

const TERMS = {
  verdict: "A rule of a few thresholds (docs/report.md). Diverged: the loss is no number, or has lost half of what it had gained. Overfitting: the last two validations were worse than the best one by more than 1%, while the training loss fell. Spiking: three spikes of the loss or more of late. Stopped: steps are missing, and no line came for long. Healthy: none of these.",
  steps: "Updates of the parameters: done so far, and planned.",
  tokens: "Tokens trained on: steps times the tokens per step.",
  time: "Wall time of training, of all processes the run had. A resumed run adds to it; the time in between does not count.",
  loss: "Cross entropy of a batch before its step, in nats per token: how surprised the model is by the next token. A model that guesses among V tokens has ln V. In the head, the mean of the last fiftieth of the steps.",
  val_loss: "Cross entropy of text that is not trained on, in nats per token. The lowest value that was found, and the step it was found after.",
  perplexity: "exp(best validation loss): the model is as unsure as if it chose among this many equally likely tokens.",
  bits: "The best validation loss in bits per byte of text. Unlike the loss it compares models of different tokenizers.",
  speed: "Tokens trained on a second, by all ranks together; in the head, the median over the steps.",
  data_wait: "The share of the time of all steps that went into waiting for the next batch. Near zero, reading ahead keeps up.",
  mfu: "Model FLOP utilisation: the floating-point operations that the model's formulas need, as a share of what the device could do at its peak (metrics.peak_tflops). Median over the steps.",
  flops: "Floating-point operations that the model's formulas need, per second and per device. Recomputed activations do not count. Median over the steps.",
  saving: "Time that steps waited for checkpoints. Most of a save happens during training and does not count.",
  skipped: "Steps whose gradient was not finite: the parameters stayed as they were.",
  checkpoints: "States from which the run can resume: how many were saved so far, and how many of them are still on disk (checkpoint.keep, checkpoint.keep_best). The ticks in the plots are the saved ones.",
  data: "What the model is trained on.",
  ranks: "Threads or processes that train together, and how parameters, gradients and optimizer state are spread over them: under ddp each rank holds all, under zero1 and shard_grad_op the optimizer's state is sharded, under full_shard everything is.",
  batch: "Sequences of one step over all ranks, and how many a rank computes at once (micro-batch). Gradients of the micro-batches are added up.",
  grad_norm: "The length of the gradient of all parameters, before it is clipped. Jumps announce trouble.",
  lr: "How far the optimizer moves: rises in the warm-up, then falls as the schedule says.",
  aux_loss: "What is added to the training loss: the balance loss, which keeps the router from preferring some experts, and the z-losses, which keep logits small.",
  step_seconds: "Wall time of a step; the filled part below is waiting for data.",
  cv: "Coefficient of variation of the experts' loads: standard deviation over mean. 0 is perfect balance; below 0.1 is good.",
  busiest: "The load of the busiest expert over the mean load, in the worst layer.",
  dropped: "Choices of an expert that had no room left (moe.capacity_factor): these tokens do without it.",
  experts: "How many choices each expert got in each reported step, over the mean of its layer.",
  spike: "A loss or gradient norm four or more standard deviations above the hundred steps before.",
  bubble: "The share of a step's forwards and backwards in which a pipeline's stage waits for another one, in the mean of the stages.",
  stages: "What each stage of the model computes when in a step, for which micro-batch. Beside it what was measured, as medians: how long the stage computes in a step, and the share of its forwards and backwards in which it waits for another stage, its part of the bubble. Stages that compute for longer than others make these wait.",
  layout: "Which ranks share what, by the axes of the configuration: bytes of parameters and optimizer state that rest on a rank, and bytes that it receives from the others per step, computed when the run began, of full micro-batches and even loads of experts.",
  memory: "Bytes of rank 0 by category. At rest: between steps. At most: the highest value since the start, of each category by itself.",
  traffic: "What rank 0 received in collective calls, over all processes the run had.",
  sample: "Text the model generated from an empty line during training. The newest is first.",
};

// A word that tells what it means, to the pointer, on focus and on a tap.
function term(key, label) {
  if (!TERMS[key]) return label;
  return el("button", { type: "button", class: "term", "data-term": key, "aria-describedby": `about-${key}` }, label);
}

function explain(node) {
  again = () => {
    const { left, bottom } = node.getBoundingClientRect();
    tip(node.isConnected ? [el("div", {}, TERMS[node.dataset.term])] : null, left - 16, bottom - 6);
  };
  again();
}

function listenForTerms() {
  byId("glossary").append(...Object.entries(TERMS).map(([key, text]) => el("span", { id: `about-${key}` }, text)));
  const of = (event) => (event.target.closest ? event.target.closest(".term") : null);
  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, (event) => of(event) && explain(of(event)));
  for (const kind of ["pointerout", "focusout"]) document.addEventListener(kind, (event) => {
    if (of(event) && event.pointerType !== "touch") forget();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && forget());
  document.addEventListener("pointerdown", (event) => !of(event) && !event.target.closest("svg.chart, canvas") && forget());
  addEventListener("scroll", forget, { passive: true });
}

// Shows the box beside a place, inside the window; without content it goes.
function tip(content, x, y) {
  const box = byId("tip");
  box.hidden = !content;
  if (!content) return;
  box.replaceChildren(...content.flat(2).filter(Boolean));
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  const left = x + 16 + width < innerWidth ? x + 16 : x - 16 - width;
  const below = y + 14 + height < innerHeight - 6 ? y + 14 : y - height - 14;
  box.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
  box.style.top = `${Math.max(4, below)}px`;
}
