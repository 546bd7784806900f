// SPDX-License-Identifier: Apache-2.0
// Inside fide_fifo, proved by induction: what is pushed comes out, once, in its order, and the level is
// what was pushed and not popped.
  (* anyseq *) logic watch;     // follow the entry that is pushed now
  logic past_q = 1'b0;
  logic watching_q = 1'b0;
  logic [Width-1:0] watched_q;
  logic [PtrW:0] ahead_q;       // entries before the one that is followed
  logic [PtrW:0] count_q;
  logic pushed, popped;
  logic [PtrW-1:0] place;
  assign pushed = push_i && !full_o && !clear_i;
  assign popped = pop_i && valid_o && !clear_i;
  assign place  = PtrW'(rd_q + ahead_q);

  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    if (!rst_ni || clear_i) begin
      watching_q <= 1'b0;
      count_q <= '0;
    end else begin
      count_q <= count_q + (PtrW + 1)'(pushed) - (PtrW + 1)'(popped);
      if (pushed && watch && !watching_q) begin
        watching_q <= 1'b1;
        watched_q <= data_i;
        ahead_q <= count_q - (PtrW + 1)'(popped);
      end else if (watching_q && popped) begin
        if (ahead_q == '0) watching_q <= 1'b0;
        ahead_q <= ahead_q - 1'b1;
      end
    end
  end

  always_comb begin
    if (!past_q) assume (!rst_ni);
    if (past_q) begin
      level_bounded: assert (level_o <= (PtrW + 1)'(Depth) || !rst_ni);
      level_counts: assert (level_o == count_q || !rst_ni);
      full_is_full: assert (full_o == (count_q == (PtrW + 1)'(Depth)) || !rst_ni);
      valid_is_some: assert (valid_o == (count_q != '0) || !rst_ni);
      if (watching_q && rst_ni) begin
        // In it at its place: what makes the next line inductive.
        watched_is_in: assert (ahead_q < count_q);
        watched_is_kept: assert (mem[place] == watched_q);
        if (ahead_q == '0) watched_comes_out: assert (data_o == watched_q);
      end
      comes_out: cover (watching_q && ahead_q == '0 && popped);
    end
  end
