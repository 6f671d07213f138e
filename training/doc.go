// Package training names the things of an experiment: its specification, the space it searches, trials and their states,
// metrics, checkpoints, and the errors that a training function can end in. It has no behaviour beyond the words
// themselves: what to try next is decided in training/search, what happens to a trial in training/controller.
//
// A trial's life (the names are Maggy's where Maggy has one):
//
//	PENDING ─► SCHEDULED ─► RUNNING ─┬─► COMPLETED
//	              ▲    ▲             ├─► STOPPED    early stopping, not promoted, or a person
//	              │    └── PAUSED ◄──┤              at a rung; goes on from its checkpoint when promoted
//	              └── lost, failed ◄─┼─► FAILED     attempts used up, or a mistake that repeats itself
//	                                 └─► INVALID    the function refused its parameters, or they fail on two nodes
//
// Epochs are the unit of budgets: one epoch is one reported step. Steps are the user's own numbers (from 0 or from 1,
// rising); a budget of nine epochs is reached with the ninth step, whatever its number.
package training
