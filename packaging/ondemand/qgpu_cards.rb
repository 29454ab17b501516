# SPDX-License-Identifier: Apache-2.0
# Initializer for Open OnDemand: its pages count cards where a job has a part of one.
#
# Copy it to /etc/ood/config/apps/dashboard/initializers/qgpu.rb, and to the same place of
# `activejobs` where that application is installed. docs/tools.md says what is counted.
#
# ood_core searches "gpu" anywhere in squeue's and sinfo's words, so it takes qgpu:online:30 for
# thirty GPUs. Here ood_core reads on without the words of qgpu, and the cards of shares are added.

require "ood_core"
require "ood_core/job/adapters/slurm"

module QgpuCards
  SHARDS_OF_A_CARD = 100

  def gpus_from_gres(gres)
    words = gres.to_s.split(/,(?![^(]*\))/) # not at the commas of (IDX:0,3) and (30/100,0/100)
    words.reject! { |word| word.match?(%r{\A(?:gres[:/])?(?:qgpu|vram)\b}) }
    shards, others = words.partition { |word| word.match?(%r{\A(?:gres[:/])?shard\b}) }
    whole = super(others.join(","))
    whole + shards.sum { |word| QgpuCards.shared(word, whole) }
  end

  # Cards that are shared, by one word: of sinfo's GresUsed those in use, of a job what it asks for.
  # Of sinfo's Gres none, because the same cards stand there as gpu:N.
  def self.shared(word, whole)
    count = word[/[:=](\d+)(?=\(|\z)/, 1].to_i
    case word
    when /\(IDX:/ then count # 22.05: how many cards are in use
    when /\(/ then word.scan(%r{(\d+)/\d+}).flatten.count { |used| used.to_i.positive? }
    else whole.zero? ? (count.to_f / SHARDS_OF_A_CARD).ceil : 0
    end
  end
end

OodCore::Job::Adapters::Slurm.singleton_class.prepend(QgpuCards)
